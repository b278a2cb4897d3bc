"""Compression under the real Lightning Trainer: masks, schedules, checkpoints, precision."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer

from lilliput.errors import ConfigError, StageError
from lilliput.integrations.lightning import CompressionCallback
from lilliput.torch import (
    AGPPruner,
    Distiller,
    LSQQuantizer,
    QATQuantizer,
    TaylorFOWeightPruner,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]

RULES = [{"final_sparsity": 0.8, "end_epoch": 2}]
BATCHES = 4


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen.append(sparsity(self))
        return nn.functional.cross_entropy(self.net(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader():
    """Return the same batch again and again: Lightning does not resume amid the batches of an epoch."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 20, generator=generator).repeat(BATCHES, 1)
    y = torch.randint(0, 5, (8,), generator=generator).repeat(BATCHES)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def sparsity(module):
    weight = module.net[0].weight
    return round(float((weight == 0).float().mean()), 2)


def trainer(folder, callback, epochs=3, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    where = {"accelerator": "cpu", "default_root_dir": folder}
    keep = {"enable_checkpointing": False} | options
    return Trainer(max_epochs=epochs, callbacks=[callback], **quiet, **where, **keep)


class Save(Callback):
    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def weights(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


def test_the_schedule_is_followed_and_strip_leaves_a_plain_model(tmp_path):
    module = Net()
    keys = list(module.state_dict())
    callback = CompressionCallback(AGPPruner(module, RULES), strip=True)
    trainer(tmp_path, callback).fit(module, loader())
    assert module.seen == [0.0] * BATCHES + [0.7] * BATCHES + [0.8] * BATCHES
    assert list(module.state_dict()) == keys
    assert type(module.net[0]) is nn.Linear
    assert sparsity(module) == 0.8


def test_a_pruner_without_a_model_takes_the_module_and_stays_if_not_told_to_strip(tmp_path):
    module = Net()
    pruner = AGPPruner(config_list=RULES)
    trainer(tmp_path, CompressionCallback(pruner)).fit(module, loader())
    assert pruner.is_wrapped
    assert pruner.bound_model is module
    raw = module.net[0]._parameters["weight"]
    assert int((raw == 0).sum()) == 512  # of 640: masked in place, not in forward only


@pytest.mark.parametrize("stop", [BATCHES, BATCHES + 2], ids=["after an epoch", "within an epoch"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, stop):
    def prepare():
        module = Net()
        pruner = AGPPruner(module, RULES)
        quantizer = QATQuantizer(module, [{"op_types": ["Linear"]}])
        return module, CompressionCallback(pruner, quantizer)

    whole, callback = prepare()
    trainer(tmp_path, callback).fit(whole, loader())

    module, callback = prepare()
    first = trainer(tmp_path, callback, max_steps=stop)
    first.callbacks.append(Save(tmp_path / "half.ckpt", stop))
    first.fit(module, loader())
    assert torch.load(tmp_path / "half.ckpt", weights_only=True)  # nothing but tensors and text

    module, callback = prepare()
    trainer(tmp_path, callback).fit(module, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert_equal(weights(module), weights(whole))
    assert sparsity(module) == 0.8


def test_learned_scales_are_trained_and_resumed(tmp_path):
    def prepare():
        module = Net()
        return module, CompressionCallback(LSQQuantizer(module, [{"op_types": ["Linear"]}]))

    whole, callback = prepare()
    trainer(tmp_path, callback, epochs=2).fit(whole, loader())
    module, callback = prepare()
    first = trainer(tmp_path, callback, epochs=1)
    first.fit(module, loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    module, callback = prepare()
    second = trainer(tmp_path, callback, epochs=2)
    second.fit(module, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert_equal(weights(module), weights(whole))


def test_a_checkpoint_opens_as_a_plain_model(tmp_path):
    module = Net()
    callback = CompressionCallback(AGPPruner(module, RULES), strip=True)
    run = trainer(tmp_path, callback, enable_checkpointing=True)
    run.fit(module, loader())
    path = run.checkpoint_callback.best_model_path
    opened = Net.load_from_checkpoint(path)
    assert_equal(weights(opened), weights(module))
    assert run.test(module, loader(), ckpt_path="best", verbose=False)[0]["loss"] > 0


def test_accumulated_gradients_and_steps_that_count_as_epochs(tmp_path):
    module = Net()
    callback = CompressionCallback(AGPPruner(module, RULES), steps_per_epoch=1)
    trainer(tmp_path, callback, epochs=2, accumulate_grad_batches=2).fit(module, loader())
    assert module.seen == [0.0, 0.0, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8]


def test_masks_hold_in_mixed_precision(tmp_path):
    module = Net()
    callback = CompressionCallback(AGPPruner(module, RULES))
    trainer(tmp_path, callback, precision="bf16-mixed").fit(module, loader())
    raw = module.net[0]._parameters["weight"]
    assert raw.dtype == torch.float32
    assert int((raw == 0).sum()) == 512


def test_a_criterion_sees_the_gradients_that_a_plain_loop_shows_it(tmp_path):
    """Lightning computes gradients within ``optimizer.step``: a hook before it would be too early."""

    def prepare():
        module = Net()
        rules = [{"op_names": ["net.0"], "sparsity": 0.5}]
        return module, TaylorFOWeightPruner(module, rules, training_batches=2)

    module, pruner = prepare()
    trainer(tmp_path, CompressionCallback(pruner), epochs=1).fit(module, loader())

    plain, other = prepare()
    optimizer = plain.configure_optimizers()
    other.compress()
    other.bind_optimizer(optimizer)
    for batch in loader():
        optimizer.zero_grad()
        plain.training_step(batch, 0).backward()
        optimizer.step()
    assert sparsity(plain) == 0.5
    assert_equal(weights(module), weights(plain))


def test_wrong_arguments_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="received none"):
        CompressionCallback()
    with pytest.raises(ConfigError, match="received 'Linear', expected pruners"):
        CompressionCallback(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="steps_per_epoch: received 0"):
        CompressionCallback(AGPPruner(config_list=RULES), steps_per_epoch=0)
    stranger = copy.deepcopy(Net())
    callback = CompressionCallback(AGPPruner(stranger, RULES))
    with pytest.raises(StageError, match="bound to a different model"):
        trainer(tmp_path, callback).fit(Net(), loader())
    assert not callback.following.compressors[0].is_wrapped


def test_a_failed_run_leaves_the_model_compressed(tmp_path):
    class Stop(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            raise OSError("the disk is full")

    module = Net()
    pruner = AGPPruner(module, RULES)
    run = trainer(tmp_path, CompressionCallback(pruner, strip=True))
    run.callbacks.append(Stop())
    with pytest.raises(OSError, match="disk"):
        run.fit(module, loader())
    assert pruner.is_wrapped


class Taught(Net):
    """A module whose training step adds the distance to its original."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.distillers[0].loss()


def taught():
    module = Taught()
    distiller = Distiller(module.net, [{"temperature": 2.0}])
    module.distillers = [distiller]
    return module, distiller, AGPPruner(module, RULES)


def test_a_teacher_joins_the_loss_and_a_checkpoint_goes_on_exactly(tmp_path):
    module, distiller, pruner = taught()
    path = tmp_path / "middle.ckpt"
    runner = trainer(tmp_path, CompressionCallback(distiller, pruner))
    runner.callbacks.append(Save(path, BATCHES))
    runner.fit(module, loader())
    assert sparsity(module) == 0.8 and len(distiller.values) == 1
    plain, control = Net(), None
    control = AGPPruner(plain, RULES)
    trainer(tmp_path, CompressionCallback(control)).fit(plain, loader())
    assert not torch.equal(plain.net[2].weight, module.net[2].weight)  # the teacher had a say

    resumed, distiller, pruner = taught()
    trainer(tmp_path, CompressionCallback(distiller, pruner)).fit(
        resumed, loader(), ckpt_path=path, weights_only=False
    )
    assert_equal(weights(resumed), weights(module))
