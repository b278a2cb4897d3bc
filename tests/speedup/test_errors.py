"""What cannot be shrunk says so, by name, and leaves the model as it was."""

import threading

import pytest
import torch
from random_nets import randomize
from torch import nn

from lilliput.errors import ConfigError, LilliputError, StageError, UnsupportedModelError
from lilliput.pruning.l1 import L1NormPruner
from lilliput.pruning.level import LevelPruner
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.speedup.channels import channel_groups
from lilliput.speedup.shrink import speedup

ALL = [{"op_types": ["default"], "sparsity": 0.5}]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, scale=1.0):
        return self.head(torch.relu(self.norm(self.first(x)))) * scale


class TwoInputs(Net):
    def forward(self, x, y):
        return super().forward(x) + y.sum()


class DataDependent(Net):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return super().forward(x)


class Masking(Net):
    def forward(self, x):
        y = super().forward(x)
        return y[y > 0].sum()


def make(cls=Net):
    return randomize(cls().double())


def sample():
    return torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def snapshot(model):
    """Everything that an error must leave alone."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "objects": {k: id(p) for k, p in model.named_parameters()},
        "classes": {k: type(m) for k, m in model.named_modules()},
        "modes": {k: m.training for k, m in model.named_modules()},
        "hooks": {
            k: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for k, m in model.named_modules()
        },
        "attributes": {
            k: {n: v for n, v in vars(m).items() if isinstance(v, (int, tuple, str))}
            for k, m in model.named_modules()
        },
        "gradients": {k: p.grad for k, p in model.named_parameters()},
    }


def assert_same(before, after):
    states, others = before.pop("state"), after.pop("state")
    assert before == after
    assert states.keys() == others.keys()
    assert all(torch.equal(states[k], others[k]) for k in states)


def masked(cls=Net):
    """Return a model under a pruner; one with two inputs gets two."""
    model = make(cls).train()
    inputs = (sample(), sample()) if cls is TwoInputs else sample()
    L1NormPruner(model, ALL, example_inputs=inputs).compress()
    return model


WRONG_INPUTS = {
    "shape": (torch.zeros(2, 5, dtype=torch.float64), r"Net does not run.*\(2, 5\)"),
    "dtype": (torch.zeros(2, 4, dtype=torch.int64), r"Net does not run on the example inputs"),
    "too many": ((sample(), 1.0, 2.0), r"Net does not run.*positional arguments"),
    "wrong name": ({"images": sample()}, r"Net does not run.*images"),
    "a number": (3, r"example_inputs: received int, expected"),
    "nothing": (None, r"example_inputs: received NoneType, expected"),
    "an empty tuple": ((), r"example_inputs: received tuple, expected"),
    "a string": ("image", r"example_inputs: received str, expected"),
}


@pytest.mark.parametrize("name", sorted(WRONG_INPUTS))
def test_wrong_example_inputs(name):
    inputs, message = WRONG_INPUTS[name]
    model = masked()
    before = snapshot(model)
    with pytest.raises(LilliputError, match=message):
        speedup(model, inputs)
    with pytest.raises(LilliputError, match=message):
        channel_groups(model, inputs)
    assert_same(before, snapshot(model))


def test_a_missing_argument_is_named():
    model = masked(TwoInputs)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match=r"TwoInputs does not run.*'y'"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("inputs", [(sample(), 2.0), {"x": sample(), "scale": 2.0}])
def test_arguments_by_position_and_by_name_are_right(inputs):
    model = masked()
    expected = model.eval()(sample(), 2.0)
    result = speedup(model, inputs)
    torch.testing.assert_close(result.model(sample(), 2.0), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("thing", [None, 3, "model", Net, lambda x: x])
def test_not_a_module(thing):
    name = type(thing).__name__
    for function in (speedup, channel_groups):
        with pytest.raises(
            UnsupportedModelError, match=f"received '{name}' as the model, expected"
        ):
            function(thing, sample())


def test_control_flow_that_depends_on_data_cannot_be_captured():
    model = make(DataDependent)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match=r"DataDependent cannot be captured"):
        channel_groups(model, sample())
    with pytest.raises(UnsupportedModelError, match=r"DataDependent cannot be captured"):
        speedup(model, sample())
    with pytest.raises(UnsupportedModelError, match=r"DataDependent cannot be captured"):
        L1NormPruner(model, ALL, example_inputs=sample())
    assert_same(before, snapshot(model))


def test_sizes_that_depend_on_data_cannot_be_followed():
    model = make(Masking)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match=r"sizes in the model depend on its data"):
        channel_groups(model, sample())
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("sparsity", [1.0, 1.5, -0.1, "half"])
def test_a_sparsity_that_is_none(sparsity):
    model = make()
    before = snapshot(model)
    with pytest.raises(ConfigError, match="sparsity"):
        L1NormPruner(
            model, [{"op_names": ["first"], "sparsity": sparsity}], example_inputs=sample()
        )
    assert_same(before, snapshot(model))


def test_a_layer_that_cannot_be_pruned_is_named_with_the_reason():
    model = make()
    before = snapshot(model)
    with pytest.raises(ConfigError, match=r"'head'.*the model's output"):
        L1NormPruner(model, [{"op_names": ["head"], "sparsity": 0.5}], example_inputs=sample())
    assert_same(before, snapshot(model))


def test_a_layer_named_twice():
    model = make()
    rules = [{"op_names": ["first", "first"], "sparsity": 0.5}]
    with pytest.raises(ConfigError, match="'first' is listed more than once"):
        L1NormPruner(model, rules, example_inputs=sample())


def test_nothing_masked():
    model = make()
    before = snapshot(model)
    with pytest.raises(StageError, match=r"nothing to cut.*example_inputs"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


def test_masks_on_single_weights_are_no_channels():
    model = make()
    LevelPruner(model, [{"op_types": ["default"], "sparsity": 0.5}]).compress()
    before = snapshot(model)
    with pytest.raises(StageError, match="nothing to cut"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


def test_masks_on_filters_only_need_to_be_extended():
    model = make()
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}]).compress()
    before = snapshot(model)
    with pytest.raises(StageError, match="extend_masks=True"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


def test_shrinking_twice():
    model = masked()
    speedup(model, sample())
    before = snapshot(model)
    with pytest.raises(StageError, match="shrunk already has nothing left to cut"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


def test_a_shrunk_model_can_be_pruned_and_shrunk_again():
    model = masked()
    speedup(model, sample())
    L1NormPruner(model, ALL, example_inputs=sample()).compress()
    expected = model.eval()(sample())
    result = speedup(model, sample())
    assert model.first.weight.shape == (2, 4)
    torch.testing.assert_close(result.model(sample()), expected, rtol=1e-12, atol=1e-12)


def test_a_quantized_model_is_refused_by_the_name_of_the_layer():
    model = make().float()
    x = sample().float()
    L1NormPruner(model, ALL, example_inputs=x).compress()
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": {"weight": 8}}]
    NaiveQuantizer(model, rules).compress()
    before = snapshot(model)
    with pytest.raises(StageError, match=r"'(first|head)' is under NaiveQuantizer; shrink first"):
        speedup(model, x)
    assert_same(before, snapshot(model))


def test_a_model_that_no_form_can_express_is_left_alone(monkeypatch):
    """If every candidate fails the check, nothing was touched."""
    model = masked()
    before = snapshot(model)
    monkeypatch.setattr("lilliput.frameworks.torch.verify.Reference.error", lambda *_: 0.5)
    monkeypatch.setattr("lilliput.frameworks.torch.verify.Reference.check_steady", lambda *_: None)
    with pytest.raises(UnsupportedModelError, match=r"no shrunk form.*differ by 5.0e-01"):
        speedup(model, sample())
    assert_same(before, snapshot(model))


def test_the_random_state_is_left_alone():
    model = masked()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    speedup(model, sample())
    assert torch.equal(torch.rand(3), expected)


class Locked(Net):
    """Keeps a table between calls, and has a lock, which cannot be copied."""

    def __init__(self):
        super().__init__()
        self.cache, self.lock = {"ones": torch.ones(4)}, threading.Lock()

    def forward(self, x):
        return super().forward(x * self.cache["ones"])


def test_a_model_with_a_table_that_cannot_be_copied():
    with pytest.raises(UnsupportedModelError, match="Locked cannot be copied.*Locks, generators"):
        speedup(Locked().eval(), torch.randn(2, 4))
