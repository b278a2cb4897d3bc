"""Compress a model in a training loop that accelerate prepares.

pruner = AGPPruner(model, [{"final_sparsity": 0.8, "end_epoch": 6}])
pruner.compress()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
follow(accelerator, optimizer, pruner)
for epoch in range(10):
    pruner.update_epoch(epoch)
    ...  # your loop; accelerator.save_state() and load_state() take the masks along
pruner.strip()
"""

from __future__ import annotations

from typing import Any

from lilliput.errors import ConfigError, MissingExtraError, StageError

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise MissingExtraError(
        "lilliput.integrations.accelerate needs accelerate: pip install 'lilliput[accelerate]'"
    ) from error

from lilliput.integrations.following import Following, pack, torch_optimizer, unpack


def follow(accelerator: Accelerator, optimizer: Any, *compressors: Any) -> None:
    """Make compressors follow a prepared optimizer, and include them in the accelerator's checkpoints.

    Call it after ``accelerator.prepare``, and before ``accelerator.load_state``. Call ``update_epoch``
    yourself in each epoch.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
    optimizer : accelerate.optimizer.AcceleratedOptimizer
        The optimizer returned by ``accelerator.prepare``.
    *compressors : Compressor
        Pruners and quantizers after ``compress()``, preferably called before the optimizer was created.
    """
    if not isinstance(accelerator, Accelerator):
        raise ConfigError(
            f"accelerator: received {type(accelerator).__name__!r}, expected an Accelerator: "
            "follow(accelerator, optimizer, pruner)."
        )
    following = Following(compressors)
    for compressor in following.compressors:
        if not compressor.is_wrapped:
            name = type(compressor).__name__
            raise StageError(
                f"follow() was called before compress() of {name}; call compress() first."
            )
    following.bind([torch_optimizer(optimizer)])
    accelerator.register_for_checkpointing(_Checkpointed(following))


class _Checkpointed:
    """The object that accelerate saves and loads along with model and optimizer."""

    def __init__(self, following: Following) -> None:
        self.following = following

    def state_dict(self) -> dict[str, Any]:
        return pack(self.following.states())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.following.load(unpack(state_dict))
