"""Compress a LightningModule while ``Trainer.fit`` trains it.

    pruner = AGPPruner(module, [{"final_sparsity": 0.8, "end_epoch": 6}])
    trainer = Trainer(max_epochs=10, callbacks=[CompressionCallback(pruner, strip=True)])
    trainer.fit(module)

Checkpoints contain the masks and the progress of the pruner, and ``fit(ckpt_path=...)`` resumes from them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lilliput.errors import MissingExtraError
from lilliput.frameworks import part_of
from lilliput.integrations.following import Following, pack, unpack


def _callback_type() -> Any:
    """Return Lightning's ``Callback``, from the package of either name."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise MissingExtraError(
        "lilliput.integrations.lightning needs Lightning: pip install 'lilliput[lightning]'"
    )


class CompressionCallback(_callback_type()):  # type: ignore[misc]
    """Follow the training of a LightningModule with pruners and quantizers.

    The weights in a checkpoint are those of the plain model (pruned ones are zero), so that
    ``load_from_checkpoint`` opens it without Lilliput; masks and ranges are in the callback's state. (With
    ``save_weights_only``, Lightning does not call callbacks: such files contain masks besides the weights.)

    Parameters
    ----------
    *compressors : Compressor
        Bound to the module or a part of it, or to none yet: ``AGPPruner(config_list=rules)``. Those that
        are not compressed when ``fit`` starts are compressed then, before the optimizers are created.
    strip : bool
        Turn the module into a plain model at the end of ``fit``.
    steps_per_epoch : int, optional
        How many optimizer steps count as one epoch of the schedules; by default, Lightning's
        epochs are used.
    """

    def __init__(
        self, *compressors: Any, strip: bool = False, steps_per_epoch: int | None = None
    ) -> None:
        self.following = Following(compressors, steps_per_epoch)
        self.strip = strip
        self._optimizers: list[Any] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Compress the module before a checkpoint is read and optimizers are created."""
        if stage == "fit":
            self.following.attach(pl_module)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow the optimizers, which have been created by now."""
        followed = part_of("torch", "stepping").ClosureOptimizer
        self._optimizers = [followed(optimizer) for optimizer in trainer.optimizers]
        self.following.bind(self._optimizers)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the schedules; ``on_train_epoch_start`` is not called in every epoch of a resumed run."""
        self.following.start(trainer.current_epoch, trainer.global_step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Pass the complete gradients to the algorithms that need them."""
        for followed in self._optimizers:
            if followed.optimizer is optimizer:
                followed.show_gradients()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Strip the model, if requested; all checkpoints have been written by now."""
        if self.strip:
            self.following.strip()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the weights plain: tensors of compressors are saved as the callback's state."""
        weights, part = checkpoint["state_dict"], part_of("torch", "sidecar")
        for key in [key for key in weights if part.is_ours(key)]:
            del weights[key]

    def state_dict(self) -> dict[str, Any]:
        """Return masks, scales and progress, for Lightning to save."""
        return pack(self.following.states()) | {"epoch": self.following.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.following.load(unpack(state_dict))
        self.following.epoch = state_dict.get("epoch")
