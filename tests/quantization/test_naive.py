import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.torch import NaiveQuantizer


@pytest.mark.parametrize("bits", [2, 3, 4, 8, {"weight": 5}])
def test_the_layer_computes_with_weights_on_the_integer_grid(bits):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, 3)
    weight = model.weight.detach().double().numpy()
    NaiveQuantizer(model, [{"quant_bits": bits}]).compress()
    top = 2 ** ((bits if isinstance(bits, int) else bits["weight"]) - 1) - 1
    scale = np.abs(weight).max() / top
    expected = np.round(weight / scale) * scale
    np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=2e-6, atol=1e-9)


def test_the_float_weight_keeps_training_through_the_rounding():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    quantizer = NaiveQuantizer(model, [{"quant_bits": 3}])
    quantizer.compress()
    x = torch.randn(64, 6)
    target = x @ torch.tensor([[1.0, -1, 0.5, 0, 0.25, -0.5]]).T
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-20:]) < losses[0] / 10
    assert len(quantizer.get_modules_wrapper()[0].weight.unique()) == 6


def test_an_all_zero_layer_stays_zero():
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    NaiveQuantizer(model, [{}]).compress()
    assert torch.equal(model.weight, torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("key", "value"), [("quant_bits", 1), ("quant_scheme", "affine"), ("quant_start_step", 10)]
)
def test_what_it_would_ignore_is_refused(key, value):
    with pytest.raises(ConfigError, match=key):
        NaiveQuantizer(nn.Linear(2, 2), [{key: value}])
