"""best_scales: the scales of weights with the smallest rounding error."""

import numpy as np
import pytest
import torch

from lilliput.ops.fakequant import covering, fake_quantize
from lilliput.ops.qparams import Grid
from lilliput.quantization import weight_scales
from lilliput.quantization.weight_scales import best_scales

GRIDS = [
    Grid(4, True, True, True),
    Grid(4, True, True, True, axis=0),
    Grid(3, True, True, False, axis=1),
    Grid(4, False, False, axis=0),
    Grid(2, True, True, True, axis=1, group_size=8),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_mse_scales_never_have_a_larger_error_than_covering_ones(grid):
    torch.manual_seed(0)
    weight = torch.randn(12, 64)
    weight[3] = 0

    def errors(qparams):
        squares = (fake_quantize(weight, qparams) - weight).square()
        if grid.group_size:
            return squares.reshape(12, -1, grid.group_size).sum(2)
        return squares.sum() if grid.axis is None else squares.sum(1 - grid.axis)

    best, widest = errors(best_scales(weight, grid)), errors(covering(weight, grid))
    assert (best <= widest * (1 + 1e-6)).all()
    assert best.sum() < 0.95 * widest.sum()
    assert (fake_quantize(weight, best_scales(weight, grid))[3] == 0).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_best_scales_are_those_of_a_search_by_hand(grid, monkeypatch):
    monkeypatch.setattr(weight_scales, "_PIECE", 1)
    monkeypatch.setattr(weight_scales, "_NARROWEST", 5)  # pieces that end within a channel's groups
    weight = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
    if grid.axis is None:
        parts, shape = [weight.ravel()], ()
    elif grid.group_size:
        parts, shape = list(weight.reshape(-1, grid.group_size)), (12, 64 // grid.group_size)
    else:
        parts, shape = list(np.moveaxis(weight, grid.axis, 0)), (weight.shape[grid.axis],)
    scales = []
    for part in parts:
        errors = {}
        for share in 0.95 ** np.arange(60):
            low, high = share * min(part.min(), 0), share * max(part.max(), 0)
            scale, zero = max(high / grid.high, low / min(grid.low, -1)), 0
            if not grid.is_symmetric:
                scale = (high - low) / (grid.high - grid.low)
                zero = grid.low - np.rint(low / scale)
            rounded = np.clip(np.rint(part / scale) + zero, grid.low, grid.high)
            errors[scale] = np.square((rounded - zero) * scale - part).mean()
        scales.append(min(errors, key=errors.get))
    found = best_scales(torch.from_numpy(weight), grid).scale
    np.testing.assert_allclose(found.numpy(), np.reshape(scales, shape), rtol=1e-5)
