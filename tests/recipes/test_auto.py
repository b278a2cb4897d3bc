"""compress: a goal in, a file out."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.export.targets.executed import open_file
from lilliput.measure.receipt import Receipt
from lilliput.recipes import auto
from lilliput.report.measure import measure_all
from lilliput.torch import compress

for name in ("scipy", "sklearn", "onnxscript"):
    pytest.importorskip(name)
sys.path.insert(0, str(Path(__file__).parents[1] / "search"))

from digits_search import accuracy, batches, digits, trained  # noqa: E402

RULES = [
    {"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.5, 0.75]}, "quant_bits": 8}
]


def goal(folder, budget, model=None, **others):
    given = {"data": batches(10), "evaluate": accuracy, "config_list": RULES, "trials": 1, **others}
    return compress(model or trained(), budget=budget, folder=folder, **given)


@pytest.mark.slow
def test_training_gives_back_what_pruning_took(tmp_path):
    done = goal(tmp_path, {"macs": 0.15, "drop": 0.0}, epochs=4, data=batches(18))
    whats = [entry["what"] for entry in done.history]
    assert whats[0] == "without pruning" and "found by the search" in whats
    before = next(x["metric"] for x in done.history if x["what"] == "found by the search")
    assert any(what.startswith("trained for") for what in whats)
    assert done.receipt.after.metric > before
    session = onnxruntime.InferenceSession(done.path)
    _, _, x, y = digits()
    answers = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0].argmax(1)
    assert float((answers == y.numpy()).mean()) == pytest.approx(done.receipt.after.metric)
    assert done.receipt.after.macs <= 0.15 * done.receipt.before.macs
    assert Receipt.load(tmp_path / "receipt.json").after == done.receipt.after
    assert "trial 1" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert done.is_met == (accuracy(trained()) <= done.receipt.after.metric)


def test_a_goal_that_needs_no_training_is_not_trained_for(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_train", None)
    done = goal(tmp_path, {"macs": 0.9, "drop": 0.5})
    assert done.is_met and str(done).endswith(f"the budget is met; the file is {done.path}")
    assert any("model.onnx is for CPUs" in note for note in done.receipt.notes)


def test_ctrl_c_keeps_the_best_so_far(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(auto, "_train", interrupted)
    model = trained()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done = goal(tmp_path, {"macs": 0.15, "drop": 0.0}, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert done.history[-1]["what"] == "found by the search" and not done.is_met
    assert done.path.exists() and not list(tmp_path.glob(".next*"))


@pytest.mark.slow
def test_a_run_in_the_same_folder_keeps_the_best_file(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_train", lambda *args: None)
    first = goal(tmp_path, {"macs": 0.15, "drop": 0.0})
    # As if it had been trained: better than all that the second run finds.
    known = json.loads((tmp_path / "search.json").read_text())
    known["findings"]["best"]["metric"] = 0.999
    (tmp_path / "search.json").write_text(json.dumps(known))
    content = first.path.read_bytes()
    (tmp_path / "model.notes").touch()  # somebody else's
    (tmp_path / ".next-killed").mkdir()
    seen = []
    monkeypatch.setattr(auto.log, "info", lambda *args: seen.append(first.path.read_bytes()))
    again = goal(tmp_path, {"macs": 0.15, "drop": 0.0})
    assert set(seen) == {content}  # at no time was there another
    assert again.receipt.after.metric == 0.999 and not list(tmp_path.glob(".next*"))
    assert [x["what"] for x in again.history] == [x["what"] for x in first.history]
    assert set(first.receipt.notes[-1:]) <= set(again.receipt.notes)  # which CPUs it is for
    assert accuracy(again.model) == pytest.approx(first.receipt.after.metric)


def test_the_figures_of_the_receipt_decide(tmp_path, monkeypatch):
    def larger(*args, **others):
        one, two = measure_all(*args, **others)
        return [one, replace(two, bytes=one.bytes)]

    monkeypatch.setattr(auto, "measure_all", larger)
    done = goal(tmp_path, {"bytes": 0.9}, epochs=0)
    assert not done.is_met and "the budget is not met" in done.receipt.notes[0]


def test_noise_is_neither_met_nor_missed(tmp_path, monkeypatch):
    def noisy(*args, **others):
        one, two = measure_all(*args, **others)
        return [one, replace(two, p50=1.0, readings=(1.0, 9.0))]

    monkeypatch.setattr(auto, "measure_all", noisy)
    monkeypatch.setattr(auto, "_train", lambda *args: None)
    done = goal(tmp_path, {"latency": "10 s"}, networks=1)
    assert done.verdict == "not shown" and not done.is_met
    assert "not shown to be met: noisy" in done.receipt.notes[0]
    assert str(done).endswith(f"the budget is NOT SHOWN to be met; the file is {done.path}")


@pytest.mark.parametrize("budget", [{"macs": 0.15, "drop": 0.0}, {"latency": 0.01}])
def test_after_the_last_hour_nothing_new_is_begun(budget, tmp_path, monkeypatch):
    """No sensitivities, no network for the latency table, no trial and no epoch: the first file is it."""
    monkeypatch.setattr("lilliput.search.task.find_scores", None)
    monkeypatch.setattr("lilliput.search.candidate.Maker.draft", None)
    monkeypatch.setattr(auto, "_train", None)
    done = goal(tmp_path, budget, hours=1e-9)
    assert [entry["what"] for entry in done.history] == ["without pruning"]
    assert done.verdict != "met" and Receipt.load(tmp_path / "receipt.json").after.bytes
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "ended before sensitivities and estimates were available" in report


def test_what_was_found_when_time_is_up_is_written_and_not_trained(tmp_path, monkeypatch):
    def found(task):
        trial = task.solve_measured()
        task.end = 0.0
        monkeypatch.setattr(auto.time, "monotonic", lambda: 1e12)
        return trial

    monkeypatch.setattr(auto, "_train", None)
    monkeypatch.setattr("lilliput.search.search.strategy_named", lambda name: found)
    done = goal(tmp_path, {"macs": 0.15, "drop": 0.0}, hours=1.0)
    assert [entry["what"] for entry in done.history][-1] == "found by the search"


@pytest.mark.slow
def test_no_epochs_are_no_training_however_much_time_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_train", None)
    assert not goal(tmp_path, {"macs": 0.15, "drop": 0.0}, epochs=0, hours=1.0).is_met


@pytest.mark.slow
def test_all_files_of_a_target_move_together(tmp_path):
    pytest.importorskip("openvino")
    done = goal(tmp_path, {"macs": 0.9, "drop": 0.5}, target="openvino", epochs=0)
    names = {path.name for path in tmp_path.glob("model.*")}
    assert names == {"model.xml", "model.bin"}
    assert accuracy(open_file(done.path)) == pytest.approx(done.receipt.after.metric)
    assert done.receipt.after.bytes == sum((tmp_path / name).stat().st_size for name in names)


def test_what_cannot_be_met_says_so_and_where_the_file_is(tmp_path):
    with pytest.raises(AlgorithmError, match=r"cannot be met.*without pruning is .*model\.onnx"):
        goal(tmp_path, {"macs": 0.001})


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"data": iter([])}, "received an iterator"),
        ({"data": []}, "received no batch"),
        ({"data": None}, "data: received None, expected batches"),
        ({"data": lambda: None}, "data: received None, expected batches"),
        ({"data": [digits()[0][:0]]}, "data: the first batch has no examples"),
        ({"hours": 0}, "hours: received 0"),
        ({"epochs": -1}, "epochs: received -1"),
    ],
)
def test_bad_arguments_are_refused(others, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        goal(tmp_path / "new", {"macs": 0.5}, **others)
    assert not (tmp_path / "new").exists()
