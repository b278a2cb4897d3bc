"""NNI v3's distillers through the shim: their keys, what they refuse, and the evaluators of libraries."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.config.distill_rules import distill_rules
from lilliput.errors import ConfigError, StageError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.mark.parametrize(
    ("rule", "today"),
    [
        ({"op_names": ["a"]}, {"op_names": ["a"], "loss": "mse", "item": 0}),
        (
            {"op_types": ["Linear"], "lambda": 2, "link": "auto", "apply_method": "kl"},
            {
                **{"op_types": ["Linear"], "loss": "kl", "temperature": 2.0, "axis": -1},
                **{"weight": 2.0, "item": 0},
            },
        ),
        (
            {"op_names": ["a"], "link": ["b", "c"], "target_names": ["_output_1"]},
            {"op_names": ["a"], "loss": "mse", "link": ["b", "c"], "item": 1},
        ),
        (
            {"op_names": ["a"], "target_settings": {"_output_0": {"lambda": 0.5}}},
            {"op_names": ["a"], "loss": "mse", "weight": 0.5, "item": 0},
        ),
        ({"op_names": ["a"], "exclude": True}, {"op_names": ["a"], "exclude": True}),
    ],
)
def test_rules_of_v3_in_the_keys_of_today(rule, today):
    assert distill_rules([rule], "Distiller") == [today]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"op_names": ["a"], "lamda": 1}, "rule 0 → lamda: unknown key"),
        ({"op_names": ["a"], "apply_method": "cosine"}, "expected 'mse' or 'kl'"),
        ({"op_names": ["a"], "target_names": ["weight"]}, "expected one output of a layer"),
    ],
)
def test_what_v3_did_not_have_is_refused(rule, words):
    with pytest.raises(ConfigError, match=words):
        distill_rules([rule], "Distiller")


def nets():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    return model, copy.deepcopy(model)


def predict(batch, model):
    return model(batch[0])


def test_a_distiller_without_a_teacher_or_an_evaluator_says_what_is_missing():
    from nni.compression.distillation import DynamicLayerwiseDistiller

    model, teacher = nets()
    with pytest.raises(ConfigError, match="teacher_model is missing"):
        DynamicLayerwiseDistiller(model, [{"op_names": ["1"]}])
    distiller = DynamicLayerwiseDistiller(model, [{"op_names": ["1"]}], None, teacher, predict)
    with pytest.raises(StageError, match="requires an evaluator"):
        distiller.compress(max_steps=1, max_epochs=None)
    with pytest.raises(ConfigError, match="expected a pruner"):
        DynamicLayerwiseDistiller.from_compressor(None, [], teacher, predict)


def test_widths_that_differ_are_for_the_adaptive_one():
    import nni
    from nni.compression import TorchEvaluator
    from nni.compression.distillation import DynamicLayerwiseDistiller

    model, _ = nets()
    teacher = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))

    def train(model, optimizer, training_step, *_):
        training_step((torch.ones(2, 4),), model)

    optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.1)
    evaluator = TorchEvaluator(train, optimizer, lambda batch, model: model(batch[0]).sum())
    rules = [{"op_names": ["0"]}]
    distiller = DynamicLayerwiseDistiller(model, rules, evaluator, teacher, predict)
    with pytest.raises(ConfigError, match="Adaptive1dLayerwiseDistiller learns a projection"):
        distiller.compress(max_steps=1, max_epochs=None)


def test_kl_of_sequences_is_summed_over_their_places_as_in_v3():
    from nni.compression.distillation import Adaptive1dLayerwiseDistiller

    model, teacher = nets()
    with torch.no_grad():
        model[1].weight.mul_(-1)
    rules = [{"op_names": ["1"], "apply_method": "kl"}]
    distiller = Adaptive1dLayerwiseDistiller(model, rules, None, teacher, predict)
    distiller.attach()
    x = torch.randn(2, 7, 4)
    output = model(x)
    received = distiller.joined_loss(torch.tensor(0.0), (x,))
    wanted = F.kl_div(
        (output / 2).log_softmax(-1), (teacher(x) / 2).softmax(-1), reduction="batchmean"
    )
    torch.testing.assert_close(received, 4 * wanted)


@pytest.mark.parametrize("kind", ["dict", "no_grad"])
def test_a_training_step_may_return_a_dict_and_is_left_alone_without_gradients(kind):
    import nni
    from nni.compression import TorchEvaluator
    from nni.compression.distillation import DynamicLayerwiseDistiller

    model, teacher = nets()
    with torch.no_grad():
        model[1].bias.add_(2)
    seen = []

    def train(model, optimizer, training_step, *_):
        with torch.set_grad_enabled(kind == "dict"):
            seen.append(training_step((torch.ones(2, 4),), model)["loss"].item())

    def step(batch, model):
        return {"loss": model(batch[0]).sum() * 0 + 1, "more": None}

    optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.1)
    evaluator = TorchEvaluator(train, optimizer, step)
    distiller = DynamicLayerwiseDistiller(
        model, [{"op_names": ["1"]}], evaluator, teacher, predict, 0.5
    )
    distiller.compress(max_steps=1, max_epochs=None)
    assert seen == pytest.approx([0.5 + 4.0] if kind == "dict" else [1.0])
