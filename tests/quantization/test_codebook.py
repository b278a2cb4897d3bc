import json

import numpy as np
import pytest
import torch
from torch import nn

import lilliput
from lilliput.errors import ConfigError
from lilliput.quantization.codebook import CodebookQuantizer, cluster
from lilliput.torch import LevelPruner, load, save


def distortion(values, centers):
    return float((np.abs(values[:, None] - centers[None]).min(1) ** 2).sum())


def test_cluster_is_as_good_as_sklearn_from_the_same_start():
    sklearn = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(0)
    values = rng.laplace(size=3000)
    start = np.linspace(values.min(), values.max(), 15)[:, None]
    other = sklearn.KMeans(15, init=start, n_init=1, max_iter=1000, tol=0).fit(values[:, None])
    ours = distortion(values, cluster(values, 15))
    assert ours == pytest.approx(other.inertia_, rel=0.02)
    assert ours < distortion(values, start[:, 0]) / 1.5


def test_the_layer_computes_with_the_nearest_values_and_zeros_stay():
    torch.manual_seed(0)
    model = nn.Linear(30, 20)
    LevelPruner(model, [{"sparsity": 0.6}]).compress()
    raw = model.weight.detach().double().numpy().copy()
    quantizer = CodebookQuantizer(model, [{"quant_bits": 3}])
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    centers = wrapper.codebook.detach().double().numpy()
    nearest = centers[np.abs(raw[..., None] - centers).argmin(-1)]
    expected = np.where(raw == 0, 0, nearest)
    np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=1e-6)
    assert (model.weight == 0).sum() == (raw == 0).sum()
    assert len(model.weight.unique()) <= 8
    np.testing.assert_allclose(centers, cluster(raw[raw != 0], 7), rtol=1e-5)


def test_the_gradient_of_a_value_is_the_sum_over_its_weights():
    torch.manual_seed(0)
    model, x = nn.Linear(12, 9), torch.randn(5, 12)
    quantizer = CodebookQuantizer(model, [{"quant_bits": 2}])
    quantizer.compress()
    seen = model.weight.detach().clone()
    (model(x) ** 2).sum().backward()
    plain = nn.Linear(12, 9)
    with torch.no_grad():
        plain.weight.copy_(seen)
        plain.bias.copy_(model.bias)
    (plain(x) ** 2).sum().backward()
    (wrapper,) = quantizer.get_modules_wrapper()
    for value, gradient in zip(wrapper.codebook.detach(), wrapper.codebook.grad, strict=True):
        torch.testing.assert_close(gradient, plain.weight.grad[seen == value].sum())
    torch.testing.assert_close(wrapper.weight.grad, plain.weight.grad)


def test_training_the_values_lowers_the_loss_and_the_file_holds_them(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3))
    x = torch.randn(200, 20)
    target = model(x).detach()
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    CodebookQuantizer(model, [{"quant_bits": 3}], optimizer).compress()
    losses = []
    for _ in range(120):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    size = save(model, tmp_path / "m.lil", compact=True)
    plain = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 3))
    again = load(plain, tmp_path / "m.lil")
    assert torch.equal(again(x), model(x))
    weights, biases = 20 * 40 + 40 * 3, 43
    # A mask and 3 bits for half of the weights, two tables, and biases as they are.
    assert size < weights * (1 + 0.5 * 3) / 8 + 2 * 7 * 4 + biases * 4 + 120


def test_nan_is_not_hidden():
    model = nn.Linear(4, 4)
    quantizer = CodebookQuantizer(model, [{}])
    quantizer.compress()
    with torch.no_grad():
        quantizer.get_modules_wrapper()[0].weight[0, 0] = float("nan")
    assert bool(model.weight.isnan()[0, 0])


@pytest.mark.parametrize("bits", [1, 9])
def test_bits_are_two_to_eight(bits):
    with pytest.raises(ConfigError, match="expected 2 to 8"):
        CodebookQuantizer(nn.Linear(4, 4), [{"quant_bits": bits}])


def test_it_is_found_by_name():
    assert lilliput.quantizer("codebook") is CodebookQuantizer
    assert "quant_bits" in json.dumps(lilliput.config_schema("codebook"))
