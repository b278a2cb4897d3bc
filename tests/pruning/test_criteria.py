"""Every criterion against its formula in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.torch import (
    ActivationAPoZRankPruner,
    ActivationMeanRankPruner,
    ChannelMasker,
    ChannelPruner,
    FPGMPruner,
    L1NormPruner,
    L2NormPruner,
    SlimPruner,
    TaylorFOWeightPruner,
)


def rows_of(layer):
    """One row per output channel, in NumPy."""
    weight = layer.weight.detach().double().numpy()
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        parts = np.split(weight, layer.groups, axis=0)
        return np.concatenate([np.moveaxis(x, 1, 0).reshape(x.shape[1], -1) for x in parts])
    if isinstance(layer, nn.Embedding):
        return weight.T
    return weight.reshape(len(weight), -1)


FORMULAS = {
    L1NormPruner: lambda rows: np.abs(rows).sum(1),
    L2NormPruner: lambda rows: np.sqrt((rows**2).sum(1)),
    FPGMPruner: lambda rows: [sum(np.linalg.norm(a - b) for b in rows) for a in rows],
}
LAYERS = {
    "conv": lambda: nn.Conv2d(4, 6, 3),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "conv1d": lambda: nn.Conv1d(4, 30, 3),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3),
    "transposed grouped": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
    "linear": lambda: nn.Linear(5, 7),
    "embedding": lambda: nn.Embedding(9, 6),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("cls", FORMULAS, ids=lambda cls: cls.__name__)
def test_norms_and_distances_of_filters(cls, layer):
    torch.manual_seed(0)
    model = nn.Sequential(LAYERS[layer]())
    rows = rows_of(model[0])
    pruner = cls(model, [{"sparsity": 0.5}])
    wrapper = pruner.get_modules_wrapper()[0]
    expected = np.array(FORMULAS[cls](rows))
    np.testing.assert_allclose(pruner.masker.score(wrapper).numpy(), expected, rtol=1e-5)
    pruner.compress()
    gone = np.sort(np.argsort(expected)[: round(len(rows) / 2)])
    zero = np.flatnonzero((rows_of(model[0]) == 0).all(1))
    assert zero.tolist() == gone.tolist()
    if getattr(model[0], "bias", None) is not None:
        assert np.flatnonzero(model[0].bias.detach().numpy() == 0).tolist() == gone.tolist()


ACTIVATED = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "gelu": lambda x: torch.nn.functional.gelu(torch.tensor(x)).numpy(),
}


@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("cls", [ActivationAPoZRankPruner, ActivationMeanRankPruner])
def test_averages_of_activations(cls, activation):
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(3, 8, 3), nn.Linear(6, 10)
    model = nn.Sequential(conv, linear)  # linear works on the last axis: (N, 8, 6, 6) -> 10
    batches = [torch.randn(n, 3, 8, 8) for n in (4, 4, 1)]  # of unequal size
    seen = {"0": [], "1": []}
    with torch.no_grad():
        for batch in batches:
            seen["0"].append(conv(batch).transpose(0, 1).flatten(1).numpy())
            seen["1"].append(model(batch).movedim(-1, 0).flatten(1).numpy())
    pruner = cls(model, [{"sparsity": 0.5}], activation=activation)
    pruner.calibrate((batch, "label") for batch in batches)
    for wrapper in pruner.get_modules_wrapper():
        active = ACTIVATED[activation](np.concatenate(seen[wrapper.name], axis=1))
        measured = active != 0 if cls is ActivationAPoZRankPruner else active
        score = pruner.masker.score(wrapper).numpy()
        np.testing.assert_allclose(score, measured.mean(1), rtol=1e-5, atol=1e-7)


def test_taylor_averages_squared_gradient_times_weight_over_batches():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 4))
    batches = [torch.randn(4, 3, 6, 6) for _ in range(3)]
    expected = {"0": 0.0, "3": 0.0}
    for batch in batches:
        model.zero_grad()
        model(batch).square().sum().backward()
        for name in expected:
            layer = model.get_submodule(name)
            product = (layer.weight.grad * layer.weight.detach()).double().numpy()
            expected[name] += (product**2).reshape(len(product), -1).sum(1) / 3
    model.zero_grad()
    pruner = TaylorFOWeightPruner(model, [{"sparsity": 0.5}])
    pruner.calibrate(batches, loss=lambda model, batch: model(batch).square().sum())
    for wrapper in pruner.get_modules_wrapper():
        score = pruner.masker.score(wrapper).numpy()
        np.testing.assert_allclose(score, expected[wrapper.name], rtol=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_slim_scores_the_scales_of_batch_norms():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    nn.init.normal_(model[1].weight)
    pruner = SlimPruner(model, [{"sparsity": 0.5}])
    (wrapper,) = pruner.get_modules_wrapper()
    assert wrapper.name == "1"
    assert torch.equal(pruner.masker.score(wrapper), model[1].weight.detach().abs())


class Wrong(ChannelMasker):
    def score(self, wrapper):
        return wrapper.weight.abs().flatten()


class WrongPruner(ChannelPruner):
    masker_type = Wrong


def test_scores_of_the_wrong_shape_are_named():
    with pytest.raises(
        AlgorithmError, match=r"Wrong.score returned the shape \(6,\) for layer '0'"
    ):
        WrongPruner(nn.Sequential(nn.Linear(2, 3)), [{"sparsity": 0.5}]).compress()


def test_nan_is_named():
    model = nn.Sequential(nn.Linear(2, 3))
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.raises(AlgorithmError, match="layer '0' has NaN among its scores"):
        L1NormPruner(model, [{"sparsity": 0.5}]).compress()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "tanh"}, "activation: received 'tanh'"),
        ({"training_batches": 0}, "training_batches: received 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ActivationAPoZRankPruner(nn.Linear(2, 2), [{"sparsity": 0.5}], **arguments)
