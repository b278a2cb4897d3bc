"""Training and evaluation mode of every module, changed temporarily and restored.

Some modules do more than set a flag when the mode changes: layers with adapters merge these into a weight
for evaluation. So a mode is restored by the method that a module has for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from lilliput.frameworks.torch.features import unrecorded


def has_own_modes(module: nn.Module) -> bool:
    """Whether a module overrides what happens when its mode changes."""
    return type(module).train is not nn.Module.train


class Modes:
    """The modes of all modules of some models, to restore later."""

    def __init__(self, *models: nn.Module) -> None:
        self._modes = [(module, module.training) for model in models for module in model.modules()]

    def restore(self) -> None:
        """Restore the mode of every module; those that it would not change are not called."""
        for module, is_training in self._modes:
            if module.training != is_training and has_own_modes(module):
                module.train(is_training)  # which may set those of its children, too
        for module, is_training in self._modes:
            module.training = is_training


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models in eval mode temporarily; their distillers ignore what is run meanwhile."""
    modes = Modes(*models)
    for model in models:
        if any(module.training for module in model.modules()):
            model.eval()
    try:
        with unrecorded(*models):
            yield
    finally:
        modes.restore()
