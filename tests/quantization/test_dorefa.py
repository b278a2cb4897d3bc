import numpy as np
import pytest
import torch
from torch import nn

from lilliput.quantization.dorefa import dorefa_weight
from lilliput.torch import DoReFaQuantizer


def paper(weight, bits):
    """Equation 9 of the paper, in NumPy."""
    if bits == 1:
        return np.sign(weight) * np.abs(weight).mean()
    levels = 2**bits - 1
    squeezed = np.tanh(weight)
    unit = squeezed / (2 * np.abs(squeezed).max()) + 0.5
    return 2 * np.round(levels * unit) / levels - 1


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_weights_follow_the_paper(bits):
    torch.manual_seed(0)
    weight = torch.randn(20, 30, dtype=torch.float64)
    np.testing.assert_allclose(dorefa_weight(weight, bits).numpy(), paper(weight.numpy(), bits))
    assert len(dorefa_weight(weight, bits).unique()) <= 2**bits


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_the_gradient_passes_the_rounding_and_is_exact_elsewhere(bits):
    torch.manual_seed(0)
    weight = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(5, 6, dtype=torch.float64)
    dorefa_weight(weight, bits).backward(upstream)
    smooth = weight.detach().clone().requires_grad_()
    if bits == 1:
        reference = smooth  # straight through
    else:
        squeezed = smooth.tanh()
        reference = squeezed / squeezed.abs().max()
    reference.backward(upstream)
    torch.testing.assert_close(weight.grad, smooth.grad)


def test_the_documented_configuration_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    config = [
        {"quant_types": ["weight"], "quant_bits": {"weight": 8}, "op_types": ["Conv2d", "Linear"]}
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    DoReFaQuantizer(model, config, optimizer).compress()
    x, y = torch.randn(32, 1, 6, 6), torch.arange(32) % 2
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_an_all_zero_weight_gives_finite_values():
    assert bool(torch.isfinite(dorefa_weight(torch.zeros(3, 3), 4)).all())
