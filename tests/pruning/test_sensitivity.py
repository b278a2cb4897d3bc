import numpy as np
import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.pruning.sensitivity_rounds import IterativeSensitivityPruner
from lilliput.torch import SensitivityAnalysis, SensitivityPruner


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 10))


@pytest.mark.parametrize("key", ["quality", "sparsity"])
@pytest.mark.parametrize("quality", [0.0, 0.3, 0.8, 1.5])
def test_weights_below_q_standard_deviations_go_and_no_others(key, quality):
    model = net()
    with torch.no_grad():
        model[3].weight.normal_(0.05, 0.3)
    weights = [model[0].weight.detach().numpy().copy(), model[3].weight.detach().numpy().copy()]
    SensitivityPruner(model, [{"op_types": ["default"], key: quality}]).compress()
    for layer, weight in zip((model[0], model[3]), weights, strict=True):
        kept = np.abs(weight) >= quality * weight.std(dtype=np.float64)
        np.testing.assert_array_equal(layer.weight.detach().numpy(), np.where(kept, weight, 0))


@pytest.mark.parametrize(
    ("quality", "share"), [(0.25, 0.197), (0.5, 0.383), (1.0, 0.683), (1.5, 0.866)]
)
def test_a_normal_layer_loses_the_share_that_theory_gives(quality, share):
    layer = nn.Linear(1000, 300)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    SensitivityPruner(layer, [{"quality": quality}]).compress()
    assert (layer.weight == 0).float().mean().item() == pytest.approx(share, abs=0.003)


def test_the_2019_call_takes_the_config_first_and_the_model_later():
    model = net()
    pruner = SensitivityPruner(config_list=[{"sparsity": 0.8, "support_type": "default"}])
    assert pruner.compress(model) is model
    assert 0.4 < (model[3].weight == 0).float().mean() < 0.6  # uniform weights: 0.8 / sqrt(3)


def test_an_epoch_without_training_removes_nothing_more():
    model = net()
    pruner = SensitivityPruner(model, [{"quality": 1.0}])
    pruner.compress()
    before = model[3].weight.detach().clone()
    for epoch in range(5):
        pruner.update_epoch(epoch)
    assert torch.equal(model[3].weight, before)


def test_masks_change_at_epochs_not_at_steps_and_never_reopen():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = SensitivityPruner(model, [{"quality": 0.8}], optimizer)
    pruner.compress()
    mask = pruner.get_modules_wrapper()[1].weight_mask
    for epoch in range(3):
        start = mask.clone()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 7, 7)).square().sum().backward()
            optimizer.step()
            assert torch.equal(mask, start)
        pruner.update_epoch(epoch)
        assert (mask <= start).all()
    assert mask.sum() < start.numel()


def test_equal_weights_have_no_deviation_and_stay():
    layer = nn.Linear(5, 5)
    nn.init.constant_(layer.weight, 0.1)
    SensitivityPruner(layer, [{"quality": 3.0}]).compress()
    assert (layer.weight != 0).all()


def test_half_precision_does_not_overflow():
    layer = nn.Linear(64, 64).half()
    with torch.no_grad():
        layer.weight.mul_(8000)
    SensitivityPruner(layer, [{"quality": 0.5}]).compress()
    assert 0.2 < (layer.weight == 0).float().mean() < 0.4


def test_a_threshold_that_removes_a_whole_layer_is_refused():
    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(AlgorithmError, match=r"'weight': quality 8 removes all .* smaller one"):
        SensitivityPruner(layer, [{"quality": 8.0}]).compress()
    assert torch.equal(layer.weight, before)


def test_nan_weights_are_refused():
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    with pytest.raises(AlgorithmError, match="NaN among its weights"):
        SensitivityPruner(layer, [{"quality": 0.5}]).compress()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "expected 'quality' .* received neither"),
        ({"quality": 0.5, "sparsity": 0.5}, "received both"),
        ({"quality": -1.0}, "greater than or equal to 0"),
        ({"quality": 80.0}, "less than or equal to 10"),
    ],
)
def test_bad_rules_are_refused(rule, message):
    with pytest.raises(ConfigError, match=message):
        SensitivityPruner(net(), [{"op_types": ["Linear"], **rule}])


@pytest.fixture
def shim():
    install(force=True)
    yield
    uninstall()


def test_the_import_paths_of_nni_lead_here(shim):
    import nni
    from nni.algorithms.compression.pytorch.pruning import SensitivityPruner as V2
    from nni.compression.pytorch.utils.sensitivity_analysis import SensitivityAnalysis as Analysis
    from nni.compression.torch import SensitivityPruner as V1
    from nni.compression.torch.utils import SensitivityAnalysis as Older

    v0 = nni.compressors.torchCompressor.SensitivityPruner
    assert all(issubclass(old, SensitivityPruner) for old in (v0, V1, V2))
    assert Analysis is Older is SensitivityAnalysis


def test_an_evaluator_makes_it_the_pruner_of_nni():
    rules = [{"sparsity": 0.5}]
    for given in (
        SensitivityPruner(net(), rules, lambda model: 1.0, base_algo="level"),
        SensitivityPruner(net(), rules, evaluator=lambda model: 1.0, base_algo="level"),
    ):
        assert type(given) is IterativeSensitivityPruner
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert type(SensitivityPruner(model, rules, optimizer)) is SensitivityPruner
