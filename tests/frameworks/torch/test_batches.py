"""Which parts of a batch a model is called with."""

import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.batches import call
from lilliput.torch import (
    ActivationAPoZRankPruner,
    PTQQuantizer,
    TaylorFOWeightPruner,
    quantization_report,
)

A, B, T = torch.ones(2, 4), torch.full((2, 4), 2.0), torch.zeros(2)


class One(nn.Module):
    def forward(self, x, scale=None):
        return x * (1 if scale is None else scale)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, y):
        return self.a(x).relu() + self.b(y)


class Optional(Two):
    def forward(self, x, y, z=None):
        return super().forward(x, y)


class Anything(Two):
    def forward(self, *parts, **named):
        return super().forward(*parts[:2])


@pytest.mark.parametrize("kind", [tuple, list])
def test_inputs_and_targets_are_told_apart_by_what_forward_demands(kind):
    assert torch.equal(call(One(), A), A)
    assert torch.equal(call(One(), kind([A])), A)
    assert torch.equal(call(One(), kind([A, T])), A)  # the optional argument is not meant
    model = Two()
    expected = model(A, B)
    for batch in (kind([A, B]), kind([A, B, T]), kind([kind([A, B]), T])):
        assert torch.equal(call(model, batch), expected)
    assert torch.equal(call(model, {"y": B, "x": A}), expected)
    assert call(Optional(), kind([A, B])).shape == expected.shape


def test_example_inputs_say_how_many_parts_are_arguments():
    model = Optional()
    expected = model(A, B)
    for example in ((A, B), [A, B]):
        assert torch.equal(call(model, (A, B, T), example), expected)
        assert torch.equal(call(model, (A, B), example), expected)
    assert torch.equal(call(One(), (A, B), (A, B)), A * B)
    assert call(Anything(), (A, B, T), (A, B)).shape == (2, 3)


@pytest.mark.parametrize(
    ("model", "batch"), [(Two(), (A,)), (Two(), (A, B, T, T)), (Optional(), (A, B, T))]
)
def test_what_cannot_be_told_is_refused_with_the_way_out(model, batch):
    with pytest.raises(ConfigError, match=r"forward=lambda model, batch: model\(batch\[0\], batch"):
        call(model, batch)


@pytest.mark.parametrize("example", [None, (A, B)])
def test_everything_that_is_fed_batches_calls_models_with_several_arguments(example):
    quantizer = PTQQuantizer(Two(), None, None, example, bias_correction=True)
    quantizer.compress()
    quantizer.calibrate([(A, B), (B, A)])
    assert float(quantizer.get_modules_wrapper()[1].input_high) == 2.0
    report = quantization_report(quantizer, [(A, B)])
    assert report.rows
    rules = [{"sparsity": 0.4, "op_names": ["a", "b"]}]
    pruner = ActivationAPoZRankPruner(Two(), rules)
    pruner.compress()
    pruner.calibrate([(A, B, T)])
    taylor = TaylorFOWeightPruner(Two(), rules)
    taylor.compress()
    taylor.calibrate([(A, B, T)], loss=lambda model, batch: model(*batch[:2]).sum())
    assert int((taylor.bound_model.a.weight == 0).all(1).sum()) == 1
