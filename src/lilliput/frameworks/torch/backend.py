"""The torch backend: the engine's protocols in one class."""

from __future__ import annotations

from torch import nn

from lilliput.frameworks.base import Backend
from lilliput.frameworks.torch import instrument
from lilliput.frameworks.torch.discover import DEFAULT_TYPES
from lilliput.frameworks.torch.fastpath import pass_padded
from lilliput.frameworks.torch.ports.files import TorchProcesses, TorchStoring
from lilliput.frameworks.torch.ports.graphs import TorchGraphs, TorchQuantizing
from lilliput.frameworks.torch.ports.layers import TorchLayers, TorchMasks
from lilliput.frameworks.torch.ports.running import TorchRunning
from lilliput.frameworks.torch.ports.teaching import TorchTeaching
from lilliput.frameworks.torch.ports.training import TorchTraining
from lilliput.frameworks.torch.wrapper import ModuleWrapper, QuantizerModuleWrapper


class TorchBackend(
    TorchLayers,
    TorchMasks,
    TorchTraining,
    TorchRunning,
    TorchTeaching,
    TorchGraphs,
    TorchQuantizing,
    TorchProcesses,
    TorchStoring,
    Backend,
):
    """The engine's interface, implemented for torch."""

    name = "torch"
    default_types = DEFAULT_TYPES


def strip(model: nn.Module) -> nn.Module:
    """Turn a compressed model, or a copy of one, into a plain one, and return it.

    For copies that no compressor knows, such as a teacher made by ``copy.deepcopy``. Pruned
    weights are zeros; after a quantizer the weights are the trained float ones.

    Examples
    --------
    >>> import copy, torch
    >>> from lilliput.torch import LevelPruner
    >>> model = LevelPruner(torch.nn.Linear(4, 4), [{"sparsity": 0.5}]).compress()
    >>> teacher = strip(copy.deepcopy(model))
    >>> type(teacher) is torch.nn.Linear, int((teacher.weight == 0).sum())
    (True, 8)
    """
    backend = TorchBackend()
    backend.widen_norms(model)
    instrument.remove_remote_quantizers(model)
    wrappers = [module for module in model.modules() if isinstance(module, ModuleWrapper)]
    for wrapper in wrappers:
        if isinstance(wrapper, QuantizerModuleWrapper):  # before the masks that it may rely on
            backend.detach(wrapper)
    others = [w for w in wrappers if not isinstance(w, QuantizerModuleWrapper)]
    backend.write_zeros(others)
    for wrapper in others:
        backend.detach(wrapper)
    pass_padded(model)
    return model


def create() -> TorchBackend:
    """Return the backend; the one name every backend module has."""
    return TorchBackend()
