import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StateError
from lilliput.testing import TinyLSTM
from lilliput.torch import SensitivityPruner


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 17), nn.Tanh(), nn.Linear(17, 3)
    )


@pytest.fixture(autouse=True)
def one_thread():
    """The fastest for models this small, and the same sums on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


DATA = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
LABELS = net(5)(DATA).argmax(1)


def loss(model):
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(DATA), LABELS))


def quality(model):
    return -loss(model)


def finetune(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(DATA), LABELS).backward()
        optimizer.step()


def zeros(model):
    return [int((layer.weight == 0).sum()) for layer in model if isinstance(layer, nn.Linear)]


def pruner(model, rules=({"sparsity": 0.7},), func=quality, **settings):
    settings = {"base_algo": "level", "sparsities": [0.2, 0.5, 0.8], **settings}
    return SensitivityPruner(model, list(rules), func, **settings)


@pytest.mark.parametrize("sparsity", [0.1, 0.333, 0.7, 0.95])
@pytest.mark.parametrize("per_iter", [0.13, 1.0])
def test_the_target_is_met_to_the_weight_in_the_layers_together(sparsity, per_iter):
    model = net()
    tool = pruner(
        model, [{"sparsity": sparsity}], sparsity_per_iter=per_iter, acc_drop_threshold=1.0
    )
    assert tool.compress() is model
    assert sum(zeros(model)) == round(1161 * sparsity)
    assert len({entry["sparsity"] for entry in tool.rounds}) == len(tool.rounds)


def test_every_rule_has_its_own_target_and_exclude_holds():
    model = net()
    rules = [
        {"op_types": ["Linear"], "sparsity": 0.3},
        {"op_names": ["2"], "sparsity": 0.6},
        {"op_names": ["4"], "exclude": True},
    ]
    pruner(model, rules, acc_drop_threshold=1.0).compress()
    assert zeros(model) == [180, 306, 0]


def test_sensitive_layers_lose_less():
    model = net()

    def evaluator(model):
        return float((model[0].weight != 0).float().mean())

    pruner(model, [{"sparsity": 0.3}], evaluator, acc_drop_threshold=0.3).compress()
    first, second, third = (z / n for z, n in zip(zeros(model), (600, 510, 51), strict=True))
    assert first < second
    assert first < third


def test_max_sparsity_per_layer_is_kept():
    model = net()
    rule = {"total_sparsity": 0.5, "max_sparsity_per_layer": 0.55}
    pruner(model, [rule], acc_drop_threshold=1.0).compress()
    assert sum(zeros(model)) == round(1161 * 0.5)
    assert all(z <= round(n * 0.55) for z, n in zip(zeros(model), (600, 510, 51), strict=True))


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 10, 3),
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.Conv2d(10, 16, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
REFERENCE = convnet().eval()(IMAGES).detach()


def closeness(model):
    with torch.no_grad():
        return -float((model.eval()(IMAGES) - REFERENCE).square().mean())


def filters(model):
    """Output channels that are all zero, in each convolution."""
    axes = {0: (1, 2, 3), 3: (0, 2, 3), 6: (1, 2, 3)}
    return [
        int((model[i].weight == 0).all(-1).all(-1).all(int(a == (0, 2, 3)) ^ 1).sum())
        for i, a in axes.items()
    ]


@pytest.mark.parametrize("algorithm", ["l1", "l2", "fpgm"])
@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.8])
def test_filters_are_met_to_the_filter(algorithm, sparsity):
    model = convnet()
    rules = [{"op_types": ["Conv2d", "ConvTranspose2d"], "sparsity": sparsity}]
    tool = pruner(model, rules, closeness, base_algo=algorithm, acc_drop_threshold=10.0)
    tool.compress()
    units = [27, 108, 90]
    removed = sum(count * unit for count, unit in zip(filters(model), units, strict=True))
    wanted = sparsity * sum(unit * n for unit, n in zip(units, (12, 10, 16), strict=True))
    assert wanted - max(units) < removed <= wanted + 0.5
    assert model.training
    zero = [int((model[i].weight == 0).sum()) for i in (0, 3, 6)]
    assert zero == [count * unit for count, unit in zip(filters(model), units, strict=True)]


def test_what_the_base_pruner_has_to_say_is_said_once(caplog):
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    pruner(convnet(), rules, closeness, base_algo="l1", acc_drop_threshold=10.0).compress()
    assert caplog.text.count("only filters and their biases are masked") == 1


def test_with_example_inputs_followers_are_masked_too():
    model = convnet().eval()
    rules = [{"op_types": ["Conv2d", "ConvTranspose2d"], "sparsity": 0.5}]
    tool = pruner(
        model, rules, closeness, base_algo="l1", acc_drop_threshold=10.0, example_inputs=IMAGES
    )
    tool.compress()
    gone = (model[0].weight == 0).all(-1).all(-1).all(-1)
    assert gone.any()
    assert torch.equal(model[1].weight == 0, gone)
    assert (model[3].weight[gone] == 0).all()
    before = model(IMAGES)
    tool.strip()
    torch.testing.assert_close(model(IMAGES), before)
    assert type(model[1]) is nn.BatchNorm2d


def test_channels_that_go_together_come_as_near_as_they_can(caplog):
    torch.manual_seed(0)
    model = TinyLSTM().eval()
    inputs = model.make_input()
    tool = SensitivityPruner(
        model,
        [{"sparsity": 0.5}],
        lambda model: model(inputs).sum().item(),
        base_algo="l1",
        acc_drop_threshold=100.0,
        sparsities=[0.5],
        sparsity_per_iter=0.25,
        example_inputs=inputs,
    )
    tool.compress()
    assert tool.rounds[-1]["sparsity"] == pytest.approx(4 / 9)  # of nine hidden units
    assert "the sparsity stays below its target" in caplog.text


def test_maximize_and_minimize_are_mirror_images():
    models = net(), net()
    settings = {"finetuner": finetune, "acc_drop_threshold": 0.2}
    pruner(models[0], func=quality, **settings).compress()
    pruner(models[1], func=loss, metric_mode="minimize", **settings).compress()
    assert zeros(models[0]) == zeros(models[1])
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_pruned_weights_stay_pruned_through_rounds_and_finetuning():
    model = net()
    seen = []

    def watch(model):
        finetune(model)
        seen.append([layer.weight == 0 for layer in (model[0], model[2], model[4])])

    tool = pruner(model, finetuner=watch, acc_drop_threshold=1.0)
    tool.compress()
    for earlier, later in zip(seen, seen[1:], strict=False):
        assert all((b | ~a).all() for a, b in zip(earlier, later, strict=True))
    tool.strip()
    assert type(model[0]) is nn.Linear
    assert sum(zeros(model)) == round(1161 * 0.7)


def test_arguments_reach_evaluator_and_finetuner_as_in_nni():
    model = net()
    seen = set()

    def evaluator(net, offset=0.0):
        seen.add(("eval", net is model, offset))
        return quality(net) + offset

    def finetuner(net, steps):
        seen.add(("tune", net is model, steps))

    tool = pruner(
        model, [{"sparsity": 0.1}], evaluator, finetuner=finetuner, acc_drop_threshold=1.0
    )
    tool.compress(eval_args=[model], eval_kwargs={"offset": 2.0}, finetune_kwargs={"steps": 7})
    assert seen == {("eval", True, 2.0), ("tune", True, 7)}


def test_both_signatures_of_sparsity_proportion_calc_work():
    def one(sensitivities):
        return {name: 0.5 if name == "0" else 0.0 for name in sensitivities}

    def three(ori_acc, threshold, sensitivities):
        assert isinstance(ori_acc, float)
        assert threshold == 0.05
        return one(sensitivities)

    for calc in (one, three):
        model = net()
        pruner(model, [{"sparsity": 0.2}], sparsity_proportion_calc=calc).compress()
        assert zeros(model) == [232, 0, 0]
    with pytest.raises(AlgorithmError, match=r"returned None for layer '0'; expected a ratio"):
        pruner(net(), sparsity_proportion_calc=lambda s: {}).compress()


def test_a_threshold_too_strict_says_so_and_leaves_the_model_alone():
    model = net()
    before = {key: value.clone() for key, value in model.state_dict().items()}

    def brittle(model):
        return float(all((p != 0).all() for p in model.parameters()))

    with pytest.raises(AlgorithmError, match=r"acc_drop_threshold=0.001 is too strict .* Raise it"):
        pruner(model, func=brittle, acc_drop_threshold=0.001).compress()
    assert type(model[0]) is nn.Linear
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_failure_in_a_later_round_leaves_the_model_as_it_was_and_can_be_repeated():
    model, reference = net(), net()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    calls = []

    def fails_once(model):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("disk full")
        finetune(model)

    tool = pruner(model, finetuner=fails_once, acc_drop_threshold=1.0)
    with pytest.raises(RuntimeError, match="disk full"):
        tool.compress()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    tool.compress()
    pruner(reference, finetuner=finetune, acc_drop_threshold=1.0).compress()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_sparsity_of_zero_changes_nothing():
    model = net()
    assert pruner(model, [{"sparsity": 0.0}]).compress() is model
    assert zeros(model) == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric_mode": "max"}, "metric_mode: received 'max'"),
        ({"sparsity_per_iter": 0}, r"sparsity_per_iter: received 0, expected \(0, 1\]"),
        ({"acc_drop_threshold": -1}, "acc_drop_threshold: received -1"),
        ({"base_algo": "agp"}, "does not prune to a given sparsity in one shot"),
        ({"rules": [{"op_types": ["Conv2d"], "sparsity": 0.5}]}, "matches no layer"),
        (
            {"rules": [{"max_params": 0.5}], "base_algo": "l1", "example_inputs": DATA},
            "rule 0: .* needs 'sparsity'",
        ),
        ({"func": None}, "expected a model and a function"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    settings = {"func": quality, "base_algo": "level", **settings}
    rules = settings.pop("rules", [{"sparsity": 0.5}])
    with pytest.raises(ConfigError, match=message):
        SensitivityPruner(net(), rules, evaluator=settings.pop("func"), **settings)


def test_a_rule_that_its_limits_make_impossible_says_so():
    model = net()
    rules = [{"op_names": ["4"], "sparsity": 0.995}]
    with pytest.raises(AlgorithmError, match=r"rule 0: .* weights .* at their limits"):
        pruner(model, rules, acc_drop_threshold=100.0).compress()


def test_rules_come_from_the_section_of_a_file(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        "SensitivityPruner:\n  config:\n    - op_types: [Linear]\n      sparsity: 0.25\n"
    )
    model = net()
    SensitivityPruner(
        model, file, quality, base_algo="level", acc_drop_threshold=1.0, sparsities=[0.5]
    ).compress()
    assert sum(zeros(model)) == 290


def test_rounds_are_logged(caplog):
    caplog.set_level("INFO", logger="lilliput")
    pruner(net(), [{"sparsity": 0.1}], acc_drop_threshold=1.0).compress()
    assert "sensitivity of 0, 1/3: 0.2 → " in caplog.text
    assert "round 1: sparsity 0.0999, metric" in caplog.text


def test_a_csv_takes_the_place_of_the_first_scan(tmp_path):
    calls = []

    def evaluator(model):
        calls.append(1)
        return quality(model)

    (tmp_path / "nni.csv").write_text("layername,0.1,0.9\r\n0,0,0\r\n2,-9\r\n4,0,0\r\n")
    model = net()
    tool = pruner(model, [{"sparsity": 0.1}], evaluator, sparsity_per_iter=0.2)
    tool.compress(resume_sensitivity=tmp_path / "nni.csv")
    assert len(calls) == 2  # the baseline and the pruned model
    assert zeros(model)[1] == 0
    (tmp_path / "nni.csv").write_text("layername,0.1\n0,0\n")
    with pytest.raises(ConfigError, match="no metrics for 2, 4"):
        pruner(net()).compress(resume_sensitivity=tmp_path / "nni.csv")


def test_the_folder_says_what_it_holds(tmp_path):
    pruner(net(), sparsity_per_iter=0.4, acc_drop_threshold=1.0, checkpoint_dir=tmp_path).compress()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "progress.json",
        "sensitivity_before_round_1.csv",
        "sensitivity_before_round_1.json",
        "sensitivity_before_round_2.csv",
        "sensitivity_before_round_2.json",
        "weights_and_masks_after_round_1.safetensors",
        "weights_and_masks_after_round_2.safetensors",
    ]
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert progress["rounds"][-1]["sparsity"] == pytest.approx(813 / 1161)


def test_a_finished_run_is_loaded_without_a_single_evaluation(tmp_path):
    settings = {"acc_drop_threshold": 1.0, "checkpoint_dir": tmp_path}
    first, second = net(), net()
    pruner(first, finetuner=finetune, **settings).compress()
    tool = pruner(second, finetuner=finetune, **settings)
    tool.evaluator = tool.analyzer.val_func = None
    tool.evaluator = quality  # its name is part of what the folder was made from
    tool.compress()
    assert zeros(first) == zeros(second)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "weights"),
        ({"rules": [{"sparsity": 0.6}]}, "config"),
        ({"acc_drop_threshold": 0.5}, "acc_drop_threshold 1.0, here 0.5"),
        ({"finetuner": finetune}, 'finetuner null, here "finetune"'),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path, change, message):
    settings = {"acc_drop_threshold": 1.0, "checkpoint_dir": tmp_path}
    pruner(net(), [{"sparsity": 0.2}], **settings).compress()
    changed = {"rules": [{"sparsity": 0.2}], **settings, **change}
    model = net(changed.pop("seed", 0))
    with pytest.raises(
        StateError, match=rf"created with different settings: {message}.*another checkpoint_dir"
    ):
        pruner(model, **changed).compress()
    assert type(model[0]) is nn.Linear


def test_damaged_weights_are_refused(tmp_path):
    settings = {"acc_drop_threshold": 1.0, "checkpoint_dir": tmp_path, "sparsity_per_iter": 1.0}
    pruner(net(), **settings).compress()
    file = tmp_path / "weights_and_masks_after_round_1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match="damaged"):
        pruner(net(), **settings).compress()


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import test_sensitivity_rounds as toy
victim, deadline = sys.argv[2:]
calls = []

def count(name):
    calls.append(name)
    if calls.count(victim) == int(deadline):
        os.kill(os.getpid(), signal.SIGKILL)

def quality(model):
    count("quality")
    return toy.quality(model)

def finetune(model):
    toy.finetune(model)
    count("finetune")

toy.torch.set_num_threads(1)
toy.killable(toy.net(), quality, finetune, sys.argv[1]).compress()
"""


def killable(model, quality, finetune, folder):
    settings = {"sparsity_per_iter": 0.3, "acc_drop_threshold": 0.3, "checkpoint_dir": folder}
    return pruner(model, func=quality, finetuner=finetune, **settings)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")
def test_a_run_killed_in_a_scan_and_in_finetuning_ends_as_if_nothing_had_happened(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(Path(__file__).parent)))

    def run(*deadline):
        command = [sys.executable, str(program), str(tmp_path / "killed"), *deadline]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    killable(net(), quality, finetune, tmp_path / "whole").compress()
    for deadline in (("quality", "5"), ("finetune", "2")):
        done = run(*deadline)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = run("nobody", "1")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert len(names) == 10  # three rounds
    assert names == sorted(path.name for path in (tmp_path / "killed").iterdir())
    for name in names:  # metrics, weights and masks
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
