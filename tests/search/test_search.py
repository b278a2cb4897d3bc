"""Whole searches: budgets kept as measured, exact against all choices, resumed, and refused."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from digits_search import accuracy, batches, dies_once, digits, trained

from lilliput.errors import AlgorithmError, ConfigError, MissingExtraError, StateError
from lilliput.files import make_folder
from lilliput.measure.receipt import Figures
from lilliput.search.budget import parse_budget
from lilliput.search.solve import total
from lilliput.search.verdict import judge
from lilliput.torch import L1NormPruner, PTQQuantizer, Search, speedup

X = digits()[0][:4]
CHOICES = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}]


def search(budget, rules=CHOICES, evaluate=accuracy, **others):
    given = {"data": batches(), "example_inputs": X, "trials": 4, **others}
    return Search(trained(), rules, budget=budget, evaluate=evaluate, **given)


def test_the_budget_holds_in_the_written_file(tmp_path):
    given = search({"macs": 0.5, "params": 0.6, "drop": 0.1}, trials=2)
    before = {name: tensor.clone() for name, tensor in given.space.model.state_dict().items()}
    found = given.run(tmp_path)
    now = given.space.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in now.items())
    file = onnx.load(found.path)
    held = {x.name: onnx.numpy_helper.to_array(x) for x in file.graph.initializer}
    weights = [held[n.input[1]] for n in file.graph.node if n.op_type == "Conv"]
    sides = (64, 64, 64, 16)  # places of each convolution's output
    macs = sum(w.size * side for w, side in zip(weights, sides, strict=True))
    whole = 16 * 64 * (9 + 144 + 144) + 32 * 144 * 16
    assert macs + 10 * 32 <= 0.5 * (whole + 320)
    session = onnxruntime.InferenceSession(found.path)
    _, _, x, y = digits()
    answers = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0].argmax(1)
    assert float((answers == y.numpy()).mean()) == pytest.approx(found.receipt.after.metric)
    assert accuracy(trained()) - found.receipt.after.metric <= 0.1
    assert "trial 1" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert found.front[0]["metric"] >= found.receipt.after.metric - 0.01


def test_evaluations_run_in_eval_mode_and_cannot_reach_the_users_model(tmp_path):
    """A function that leaves its model trained, hooked and in train mode changes no later trial either."""
    model, seen = trained().train(), []
    model.down.eval()  # a mode of its own
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = accuracy(trained())

    def careless(given):
        seen.append(({module.training for module in given.modules()}, given is model))
        metric = accuracy(given)
        given.train()
        accuracy(given)  # moves the running statistics
        with torch.no_grad():
            given.head.weight.zero_()
        return metric

    given = Search(
        model, CHOICES, budget={"macs": 0.5}, evaluate=careless, data=batches(), example_inputs=X
    )
    task = given.start(tmp_path)
    assert task.baseline == expected
    choice = (1,) * len(task.space.decisions)
    made = {k: x.clone() for k, x in task.candidate(choice).model.state_dict().items()}
    assert task.trial(choice).metric == accuracy(task.candidate(choice).model.eval())
    left = task.candidate(choice).model.state_dict()
    assert all(torch.equal(made[name], tensor) for name, tensor in left.items())
    assert seen == [({False}, False)] * 2
    assert model.training and model.norm.training and not model.down.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_first_choice_is_the_best_of_all_by_its_scores(tmp_path):
    task = search({"macs": 0.4, "bytes": 0.35}).start(tmp_path)
    first = task.solve()
    fitting = [c for c in product(*map(range, task.space.sizes)) if task.may_fit(c)]
    assert first == min(fitting, key=task.score)
    assert len(fitting) < task.space.count


def test_the_config_lists_are_ordinary_ones(tmp_path):
    rules = [{**CHOICES[0], "quant_bits": {"choose": [8, {"weight": 4, "input": 8, "output": 8}]}}]
    found = search({"average_bits": 6, "macs": 0.6}, rules, trials=1).run(tmp_path)
    model = trained()
    model = L1NormPruner(model, found.pruning, example_inputs=X).compress()
    model = speedup(model, X).model
    quantizer = PTQQuantizer(model, found.quantization, example_inputs=X)
    model = quantizer.compress()
    quantizer.calibrate(batches(), progress=False)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {name: tuple(p.shape) for name, p in found.model.named_parameters()}
    bits = [
        (w.layer_info.shape, quantizer.grid(w, "weight").bits)
        for w in quantizer.get_modules_wrapper()
    ]
    sizes = [np.prod(shape) for shape, _ in bits]
    assert np.average([b for _, b in bits], weights=sizes) <= 6


def test_exchanges_are_judged_by_the_metric(tmp_path):
    """With scores that say nothing, the metric alone leads away from the first choice."""
    task = search({"macs": 0.5}, evaluate=_keeps_stem, trials=12).start(tmp_path)
    task.journal.note("scores", [[0.0, 1e-3, 2e-3, 3e-3] for _ in task.space.decisions])
    from lilliput.search.strategies.knapsack import search as run

    first = task.solve()
    best = run(task)
    assert first[0] > 0 and best.choice[0] < first[0]
    assert task.keeps(best.costs)


def _keeps_stem(model):
    return float(model.stem.weight.shape[0])


def test_a_budget_that_cannot_be_met_names_the_nearest(tmp_path):
    task = search({"macs": 0.01, "params": 0.9}).start(tmp_path)
    with pytest.raises(AlgorithmError, match="The closest") as caught:
        search({"macs": 0.01, "params": 0.9}).run(tmp_path)
    smallest = total(task.costs["macs"], [n - 1 for n in task.space.sizes])
    assert f"{smallest:,.0f}" in str(caught.value)
    assert not (tmp_path / "model.onnx").exists()


def test_a_drop_that_cannot_be_kept_says_what_can_be_had(tmp_path):
    with pytest.raises(AlgorithmError, match=r"drop 0: .* loses 0\.\d+ .*train"):
        search({"macs": 0.1, "drop": 0}, recover="none", trials=1).run(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "returned nan on the original"),
        ("good", "returned str, expected one number"),
        ("1", "returned str, expected one number"),
        (True, "returned bool, expected one number"),
        (np.True_, "returned bool, expected one number"),
        (torch.tensor(True), "returned Tensor of bool, expected one number"),
    ],
)
def test_an_evaluation_that_is_no_number_is_refused(value, message, tmp_path):
    with pytest.raises((AlgorithmError, ConfigError), match=message):
        search({"macs": 0.5}, evaluate=lambda model: value).run(tmp_path)


def test_an_evaluation_that_raises_is_named(tmp_path):
    def broken(model):
        raise RuntimeError("no data")

    with pytest.raises(
        AlgorithmError, match="evaluate raised RuntimeError on the original model: no data"
    ):
        search({"macs": 0.5}, evaluate=broken).run(tmp_path)


@pytest.mark.parametrize("is_raised", [True, False])
def test_an_evaluation_that_fails_in_a_trial_leaves_nothing_half_done(is_raised, tmp_path):
    """It says on which config list; the model is as it was, and no file is taken for a result."""

    def fails_on_cut(model):
        if model.stem.out_channels == 16:
            return accuracy(model)
        if is_raised:
            raise RuntimeError("out of memory")
        return math.nan

    said = "raised RuntimeError" if is_raised else "returned nan"
    given = search({"macs": 0.2}, evaluate=fails_on_cut)
    before = {name: tensor.clone() for name, tensor in given.space.model.state_dict().items()}
    with pytest.raises(AlgorithmError, match=rf"evaluate {said} on the config list [\d-]+"):
        given.run(tmp_path)
    now = given.space.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in now.items())
    assert not list(tmp_path.glob("model.*"))
    noted = json.loads((tmp_path / "search.json").read_text())["findings"]
    assert "baseline" in noted and not any(name.startswith("metric ") for name in noted)


@pytest.mark.parametrize(
    ("module", "others", "message"),
    [
        ("openvino", {"target": "openvino"}, r"target 'openvino' needs .*lilliput\[openvino\]"),
        ("optuna", {"strategy": "bayes"}, r"strategy 'bayes' needs .*lilliput\[search\]"),
        ("scipy", {}, r"searching needs .*lilliput\[search\]"),
    ],
)
def test_what_is_not_installed_is_named_before_any_work(module, others, message, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    given = {"evaluate": len, "data": None, "example_inputs": None}  # nothing of it is looked at
    with pytest.raises(MissingExtraError, match=message) as caught:
        Search(trained(), CHOICES, budget={"macs": 0.5}, **given, **others)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"target": "tensorrt"}, "target: received 'tensorrt', expected onnxruntime"),
        ({"strategy": "knapsak"}, "Did you mean 'knapsack'"),
        ({"recover": "train"}, "recover: received 'train'"),
        ({"trials": 0}, "trials: received 0"),
        ({"data": []}, "data: received no batch"),
        ({"data": None}, "data: received None, expected batches"),
        ({"data": 3}, "data: received 3, expected batches"),
        ({"data": [X[:0]]}, "data: batch 0 .* is empty, expected"),
        ({"data": X}, r"data: batch 0 \(1×8×8 float32\) has 3 axes, expected .*4×1×8×8 float32"),
        (
            {"data": [X, X[:, [0, 0]]]},
            r"cannot be called with batch 1 \(4×2×8×8 float32.*RuntimeError",
        ),
        (
            {"data": [X.long()]},
            "data: the model cannot be called with batch 0 .*int64.* RuntimeError",
        ),
        ({"data": [{"pixels": X}]}, "data: the model cannot be called with batch 0"),
        ({"data": [None]}, "data: the model cannot be called with batch 0"),
        (
            {"export_options": {"asume_vnni": False, "check": False}},
            "export_options: received 'asume_vnni', 'check', expected .*opset, min_sqnr, assume_vnni",
        ),
    ],
)
def test_bad_arguments_are_refused(others, message):
    with pytest.raises(ConfigError, match=message):
        search({"macs": 0.5}, **others)


@pytest.mark.parametrize("assumed", [True, False])
def test_a_file_can_be_made_for_other_processors(assumed, tmp_path):
    rules = [{"op_types": ["Conv2d", "Linear"], "quant_bits": {"choose": [None, 8]}}]
    found = search({"bytes": 0.5}, rules, export_options={"assume_vnni": assumed}).run(tmp_path)
    assert any(f"assume_vnni={assumed}" in note for note in found.receipt.notes)


def test_latency_in_a_runtime_that_does_not_tell_is_refused(tmp_path):
    pytest.importorskip("openvino")
    with pytest.raises(ConfigError, match="OpenVINO does not report"):
        search({"latency": 0.5}, target="openvino").run(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="no locks")
def test_what_a_killed_search_left_is_removed_when_it_goes_on(tmp_path):
    import fcntl

    left = tmp_path / ".search.json.0123456789abcdef.lilliput"
    held = tmp_path / ".search.json.fedcba9876543210.lilliput"
    left.write_bytes(b"{")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a living process has it
        search({"macs": 0.5}).start(tmp_path)
        assert not left.exists() and held.exists()


def test_a_folder_of_another_search_is_refused(tmp_path):
    search({"macs": 0.5}, trials=1).run(tmp_path)
    with pytest.raises(StateError, match="started with different choices"):
        search({"macs": 0.5}, [{"op_types": ["Conv2d"], "sparsity": {"choose": [0, 0.5]}}]).run(
            tmp_path
        )


PROGRAM = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from digits_search import *
    from lilliput.torch import Search
    calls = 0
    def evaluate(model):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
        return accuracy(model)
    rules = [{{"op_types": ["Conv2d", "Linear"], "sparsity": {{"choose": [0, 0.25, 0.5]}}}}]
    found = Search(trained(), rules, budget={{"macs": 0.6, "bytes": 0.7}}, evaluate=evaluate,
                   data=batches(), example_inputs=digits()[0][:4], trials=4).run({folder!r})
    print(found.config_list, calls)
"""


def run(folder, kill):
    tests = str(Path(__file__).parent)
    code = textwrap.dedent(PROGRAM).format(tests=tests, folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", code, str(kill)], capture_output=True, text=True, check=False
    )
    if kill:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    config_list, _, calls = done.stdout.strip().rpartition(" ")
    return config_list, int(calls)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_search_goes_on_and_ends_in_the_same_config_list(tmp_path):
    expected, calls = run(tmp_path / "whole", 0)
    for kill in range(1, calls):
        run(tmp_path / f"killed-{kill}", kill)
        found, left = run(tmp_path / f"killed-{kill}", 0)
        assert found == expected
        assert left == calls - (kill - 1)  # nothing is evaluated twice, but what was under way


@pytest.mark.parametrize("strategy", ["evolution", "netadapt", "annealing", "bayes"])
def test_every_strategy_keeps_the_budget_and_is_deterministic(strategy, tmp_path):
    if strategy == "bayes":
        pytest.importorskip("optuna")
    from lilliput.search.strategies.table import strategy_named

    found = []
    for name in ("one", "two"):
        task = search({"macs": 0.5, "params": 0.6}, trials=3).start(tmp_path / name)
        (tmp_path / name).mkdir()
        found.append(strategy_named(strategy)(task))
        assert task.keeps(found[-1].costs)
        assert found[-1].costs["macs"] <= 0.5 * task.whole["macs"]
        best = max(t.metric for t in task.tried.values() if task.keeps(t.costs))
        assert strategy == "netadapt" or found[-1].metric == best
    assert found[0] == found[1]


@pytest.mark.parametrize("strategy", ["evolution", "netadapt", "annealing", "bayes"])
def test_every_strategy_refuses_what_cannot_be_met(strategy, tmp_path):
    if strategy == "bayes":
        pytest.importorskip("optuna")
    with pytest.raises(AlgorithmError, match="cannot be met"):
        search({"macs": 0.01}, strategy=strategy).run(tmp_path)


def test_a_budget_that_only_the_smallest_network_meets_is_not_refused(tmp_path, monkeypatch):
    """Estimates that are too low for all but one network: measuring that one shows that it can be done."""
    task = search({"bytes": 0.9}).start(tmp_path)
    strongest = tuple(n - 1 for n in task.space.sizes)
    whole = task.whole["bytes"]
    assert task.solve() != strongest
    monkeypatch.setattr(
        task,
        "_measured",
        lambda choice: {
            **{"params": 1.0, "macs": 1.0, "average_bits": 32.0},
            "bytes": whole * (0.89 if choice == strongest else 1.5),
        },
    )
    found = task.solve_measured()
    assert found is not None and found.choice == strongest


@pytest.mark.slow
def test_a_study_goes_on_as_it_would_have_without_an_interruption(tmp_path):
    """The same draws from the same seed; what was evaluated is looked up, and the log is complete."""
    optuna = pytest.importorskip("optuna")
    from lilliput.search.strategies.bayes import NAME
    from lilliput.search.strategies.bayes import search as run

    calls = []

    def dies(model):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return accuracy(model)

    def counted(model):
        calls.append(1)
        return accuracy(model)

    folders = [make_folder(tmp_path / name) for name in ("whole", "stopped")]
    whole = search({"macs": 0.5}, trials=6, seed=3).start(folders[0])
    best = run(whole)
    stopped = search({"macs": 0.5}, trials=6, seed=3).start(folders[1])
    stopped.evaluate = dies
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    again = search({"macs": 0.5}, trials=6, seed=3).start(folders[1])
    calls.clear()
    again.evaluate = counted
    assert run(again) == best
    assert list(again.tried) == list(whole.tried)
    assert len(calls) == len(whole.tried) - 2  # the baseline and two trials were known
    for folder in folders:
        backend = optuna.storages.journal.JournalFileBackend(str(folder / NAME))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.load_study(study_name="lilliput", storage=storage)
        done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
        assert [t.value for t in done] == [t.metric for t in whole.tried.values()]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_workers_find_the_same_even_if_one_of_them_dies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("parent").write_text(str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    choices = [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    alone = search({"macs": 0.9}).start(make_folder("alone")).trials(choices)
    context = multiprocessing.get_context("spawn")
    for name, evaluate in (("together", accuracy), ("dying", dies_once)):
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            task = search({"macs": 0.9}, evaluate=evaluate, executor=executor)
            assert task.start(make_folder(name)).trials(choices) == alone
    assert Path("died").exists()


def test_an_executor_without_submit_is_refused():
    with pytest.raises(ConfigError, match=r"executor: received int, .*submit"):
        search({"macs": 0.5}, executor=3)


def test_trials_of_an_executor_are_those_of_one_machine(tmp_path):
    """Threads, and results that come in the wrong order."""
    with ThreadPoolExecutor(3) as executor:
        task = search({"macs": 0.5}, executor=executor).start(tmp_path)
        choices = [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
        together = task.trials(choices)
    (tmp_path / "alone").mkdir()
    alone = search({"macs": 0.5}).start(tmp_path / "alone")
    assert together == [alone.trial(choice) for choice in choices]


def test_trials_are_never_more_than_allowed(tmp_path):
    for strategy in ("knapsack", "netadapt"):
        asked = search({"macs": 0.1, "drop": 0}, recover="none", trials=2, strategy=strategy)
        with pytest.raises(AlgorithmError, match="drop 0"):
            asked.run(tmp_path / strategy)
        noted = json.loads((tmp_path / strategy / "search.json").read_text())["findings"]
        assert len([x for x in noted if x.startswith("metric ")]) <= 2


def _other(model):
    return accuracy(model) - 0.1


@pytest.mark.parametrize(
    ("others", "differing"),
    [
        ({"data": batches(4)[:1] + batches(6)[4:5]}, "data"),
        ({"example_inputs": digits()[0][:8]}, "example_inputs"),
        ({"evaluate": _other}, "evaluate"),
        ({"budget": {"bytes": 0.9}}, "budget"),
        ({"export_options": {"assume_vnni": False}}, "export"),
    ],
)
def test_what_findings_rest_on_must_be_the_same(others, differing, tmp_path):
    given = {
        "budget": {"macs": 0.5},
        "evaluate": accuracy,
        "data": batches(2),
        "example_inputs": digits()[0][:4],
    }
    Search(trained(), CHOICES, **given).start(tmp_path).journal.note("baseline", 1.0)
    assert Search(trained(), CHOICES, **given).start(tmp_path).baseline == 1.0
    with pytest.raises(StateError, match=rf"started with different {differing}; .*remove this one"):
        Search(trained(), CHOICES, **{**given, **others}).start(tmp_path)


def test_an_original_that_is_not_the_journals_is_written_anew(tmp_path):
    (tmp_path / "original.onnx").write_bytes(b"of another network")
    task = search({"macs": 0.5}).start(tmp_path)
    path = task.maker.write_original(tmp_path, task.journal)
    written = path.stat().st_mtime_ns
    assert path.read_bytes() != b"of another network"
    task.maker.write_original(tmp_path, task.journal)
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("latency", "readings", "p50", "missing", "word"),
    [
        (0.5, (4.0, 4.0), 4.0, (), "met"),
        (0.5, (6.0, 6.0), 6.0, ("0.5 of the original's latency",), "not met"),
        (0.5, (2.0, 6.0), 4.0, ("noisy",), "not shown"),
        ("5 ms", (6.0, 6.0), 6.0, ("latency 5 ms",), "not met"),
        ("7 ms", (6.0, 6.0), 6.0, (), "met"),
    ],
)
def test_the_receipt_decides_whether_a_budget_is_met(
    latency, readings, p50, missing, word, tmp_path
):
    task = search({"macs": 0.5, "bytes": 1000}).start(tmp_path)
    task.limits = parse_budget({"latency": latency, "bytes": 1000})
    task.clock = SimpleNamespace(milliseconds=8.0)
    task.baseline = 0.9
    said = {"runtime": "ONNX Runtime", "runs": 9}
    before = Figures("before", bytes=4000, p50=10.0, readings=(10.0, 10.0), **said)
    after = Figures("after", bytes=900, p50=p50, readings=readings, metric=0.85, **said)
    costs = {"latency": 0.1, "bytes": 10.0}  # what the search saw was better
    found = judge(task, costs, before, after, 0.1)
    assert found.word == word
    assert all(part in line for part, line in zip(missing, found.notes, strict=True))
    # What is certain to be missed is not excused by noise.
    larger = judge(task, costs, before, replace(after, bytes=2000), 0.1)
    assert larger.word == "not met" and len(larger.notes) == len(missing) + 1
    endless = replace(task.limits["latency"], value=math.inf, is_share=False)
    noisy = replace(after, readings=(2.0, 6.0))
    task.limits = {"latency": endless}
    del task.bounds
    assert judge(task, costs, before, noisy, None).notes == ()
    task.limits = parse_budget({"latency": latency, "bytes": 1000})
    del task.bounds
    larger = judge(task, costs, before, replace(after, bytes=1001), 0.01).missed
    assert any("the budget is not met: bytes" in x for x in larger)
    assert any("more than the drop of 0.01" in x for x in larger)
