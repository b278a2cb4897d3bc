"""Batch norms get the statistics of the data, exactly, and everything else stays."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.torch import L1NormPruner, NaiveQuantizer, recalibrate, speedup


def small_net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4)).eval()


def test_statistics_are_those_of_all_examples_however_they_are_batched():
    model, x = small_net(), torch.randn(21, 3, 8, 8)
    recalibrate(model, [x[:4], x[4:20], (x[20:], torch.zeros(1))])
    seen = model[0](x).detach().double().numpy().transpose(1, 0, 2, 3).reshape(8, -1)
    np.testing.assert_allclose(model[1].running_mean, seen.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model[1].running_var, seen.var(1, ddof=1), rtol=1e-5)


def test_modes_momentum_weights_and_hooks_stay():
    model = small_net()
    model[1].train()
    before = copy.deepcopy(model.state_dict())
    recalibrate(model, [torch.randn(8, 3, 8, 8)])
    assert [m.training for m in model] == [False, True, False, False, False, False]
    assert model[1].momentum == 0.3
    assert not model[1]._forward_pre_hooks
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"1.running_mean", "1.running_var"}


def test_a_masked_and_a_cut_model_get_the_same_statistics():
    model, x = small_net(), torch.randn(16, 3, 8, 8)
    rule = {"op_names": ["0"], "sparsity": 0.5}
    L1NormPruner(model, [rule], example_inputs=x[:2]).compress()
    masked = copy.deepcopy(model)
    recalibrate(masked, [x])
    shrunk = speedup(model, x[:2]).model
    recalibrate(shrunk, [x])
    torch.testing.assert_close(shrunk(x), masked(x))


def test_a_norm_that_no_batch_reaches_keeps_its_statistics():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    recalibrate(model, [torch.randn(8, 2) + 3], forward=lambda model, x: model[0](x))
    assert model[0].running_mean.min() > 1
    assert (model[1].running_mean.tolist(), model[1].running_var.tolist()) == ([0, 0], [1, 1])


def test_what_cannot_be_recalibrated_is_refused():
    with pytest.raises(UnsupportedModelError, match="no batch norms"):
        recalibrate(nn.Linear(2, 2), [torch.zeros(2, 2)])
    with pytest.raises(AlgorithmError, match="no batch was run"):
        recalibrate(small_net(), [])
    flat = nn.Sequential(nn.BatchNorm1d(2))
    with pytest.raises(AlgorithmError, match=r"'0' 1 values per channel, expected two"):
        recalibrate(flat, [torch.zeros(4, 2), torch.ones(1, 2)])
    with pytest.raises(AlgorithmError, match=r"'0' was given NaN"):
        recalibrate(flat, [torch.zeros(4, 2), torch.full((4, 2), torch.nan)])
    assert flat[0].running_mean.tolist() == [0, 0]
    model = small_net()
    NaiveQuantizer(model, [{"op_types": ["Conv2d"]}]).compress()
    with pytest.raises(StageError, match="recalibrate first"):
        recalibrate(model, [torch.randn(8, 3, 8, 8)])
