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


def deep_net():
    torch.manual_seed(1)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU()]
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(6 * 16, 4))
    for _ in range(20):  # statistics of its own data, weights of norms of some kind
        model(torch.randn(16, 3, 8, 8))
    for norm in (model[1], model[4]):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    return model.eval()


def outputs_of(model, index, x):
    """What a norm puts out, one row per channel."""
    with torch.no_grad():
        return (
            model[: index + 1](x).double().numpy().transpose(1, 0, 2, 3).reshape(8 - index // 2, -1)
        )


def test_with_the_original_norms_put_out_what_they_do_there_on_any_data():
    original = deep_net()
    model, x = copy.deepcopy(original), 3 * torch.rand(32, 3, 8, 8) + 1  # unlike its data
    rule = {"op_names": ["0"], "sparsity": 0.5}
    L1NormPruner(model, [rule], example_inputs=x[:2]).compress()
    before = copy.deepcopy(original.state_dict())
    fell = np.abs(outputs_of(model, 4, x).mean(1) - outputs_of(original, 4, x).mean(1)).max()
    recalibrate(model, [x], original=original)
    here, there = outputs_of(model, 4, x), outputs_of(original, 4, x)
    assert fell > 0.5
    np.testing.assert_allclose(here.mean(1), there.mean(1), atol=1e-3)
    np.testing.assert_allclose(here.std(1), there.std(1), rtol=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())


def test_with_the_original_a_model_that_lost_nothing_stays_on_any_data():
    original = deep_net()
    model, x = copy.deepcopy(original), 3 * torch.rand(32, 3, 8, 8) + 1
    recalibrate(model, [x[:16], x[16:]], original=original)
    for index in (1, 4):
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(model[index], name), getattr(original[index], name))
    recalibrate(model, [x])
    assert (model[1].running_mean - original[1].running_mean).abs().max() > 0.5


def test_an_original_must_be_a_copy_with_the_same_norms():
    original = deep_net()
    with pytest.raises(StageError, match="original is the model itself"):
        recalibrate(original, [torch.randn(8, 3, 8, 8)], original=original)
    with pytest.raises(StageError, match=r"'1' has 8 channels here and 4 in the original.*speedup"):
        other = deep_net()
        other[1] = nn.BatchNorm2d(4)
        recalibrate(original, [torch.randn(8, 3, 8, 8)], original=other)


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
    with pytest.raises(AlgorithmError, match=r"'0' 1 values per channel, expected at least two"):
        recalibrate(flat, [torch.zeros(4, 2), torch.ones(1, 2)])
    with pytest.raises(AlgorithmError, match=r"'0' received NaN"):
        recalibrate(flat, [torch.zeros(4, 2), torch.full((4, 2), torch.nan)])
    assert flat[0].running_mean.tolist() == [0, 0]
    model = small_net()
    NaiveQuantizer(model, [{"op_types": ["Conv2d"]}]).compress()
    with pytest.raises(StageError, match="recalibrate first"):
        recalibrate(model, [torch.randn(8, 3, 8, 8)])
