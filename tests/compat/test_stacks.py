"""What the classes behind NNI's paths refuse, and how they read constructors and trainers."""

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.training import call_trainer
from lilliput.errors import ConfigError, StageError

RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.fixture
def evaluator():
    from nni.compression import TorchEvaluator

    model = nn.Linear(4, 4)
    evaluator = TorchEvaluator(lambda *_: None, torch.optim.SGD(model.parameters(), lr=0.1))
    evaluator.model = model
    return evaluator


def test_evaluators_of_other_libraries_name_their_callback():
    from nni.compression import LightningEvaluator, TransformersEvaluator

    with pytest.raises(StageError, match=r"lilliput.integrations.lightning.CompressionCallback"):
        LightningEvaluator(None, None)
    with pytest.raises(StageError, match=r"lilliput.integrations.transformers.CompressionCallback"):
        TransformersEvaluator(None)


def test_what_is_not_imitated_is_refused(evaluator):
    from nni.compression.pruning import LevelPruner as Third
    from nni.compression.pytorch.pruning import LevelPruner
    from nni.compression.quantization import PtqQuantizer

    with pytest.raises(ConfigError, match="mode 'balance' is not available"):
        LevelPruner(nn.Linear(4, 4), RULES, "balance", [2, 2])
    with pytest.raises(StageError, match="make both compressors on the same model"):
        Third.from_compressor(None, RULES)
    with pytest.raises(StageError, match=r"calibrate\(batches\)"):
        PtqQuantizer(evaluator.model, [{"quant_types": ["weight"]}], evaluator).compress()


def test_a_call_that_fits_no_form_is_shown_the_forms():
    from nni.compression.torch import L1FilterPruner

    with pytest.raises(ConfigError, match=r"received \(Linear, list, int\), expected one of"):
        L1FilterPruner(nn.Linear(4, 4), RULES, 3)
    with pytest.raises(ConfigError, match="dependency_aware needs dummy_input"):
        L1FilterPruner(nn.Linear(4, 4), RULES, dependency_aware=True)


def test_a_trainer_gets_what_its_parameters_name():
    seen = []

    def by_name(model, optimizer, criterion, epoch, scheduler=None, verbose=False):
        seen.append((model, optimizer, criterion, epoch, scheduler, verbose))

    def without_epoch(net, optim, loss_fn, scheduler=None):
        seen.append((net, optim, loss_fn, scheduler))

    def other_order(model, criterion, optimizer):
        seen.append((model, criterion, optimizer))

    def keywords(model, **given):
        seen.append((model, given))

    for trainer in (by_name, without_epoch, other_order, keywords):
        call_trainer(trainer, "model", "optimizer", "criterion", 7)
    assert seen == [
        ("model", "optimizer", "criterion", 7, None, False),
        ("model", "optimizer", "criterion", None),
        ("model", "criterion", "optimizer"),
        ("model", {"optimizer": "optimizer", "criterion": "criterion", "epoch": 7}),
    ]
    with pytest.raises(ConfigError, match="'loader' has no default"):
        call_trainer(lambda model, optimizer, criterion, loader: None, "m", "o", "c", 0)


def test_masks_can_be_loaded_again_and_the_model_wrapped_again():
    from nni.compression.pruning import LevelPruner

    model = nn.Sequential(nn.Linear(4, 4))
    pruner = LevelPruner(model, RULES)
    _, masks = pruner.compress()
    pruner.unwrap_model()
    assert type(model[0]) is nn.Linear
    pruner.wrap_model()
    flipped = {"0": {"weight": 1 - masks["0"]["weight"]}}
    pruner.load_masks(flipped)
    assert torch.equal(pruner.get_masks()["0"]["weight"], flipped["0"]["weight"])
    assert not model[0].weight.any()


def test_the_mode_global_ranks_over_all_layers():
    from nni.compression.pytorch.pruning import FPGMPruner

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
    pruner = FPGMPruner(model, RULES, "global")
    assert pruner.config_list == [{"op_types": ["Linear"], "total_sparsity": 0.5}]
    _, masks = pruner.compress()
    gone = sum(int((m["weight"] == 0).all(1).sum()) for m in masks.values())
    assert gone == 8
