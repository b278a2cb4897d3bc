"""Before and after shrinking: check that a model can be shrunk, and remove its compressors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from lilliput.errors import StageError, UnsupportedModelError
from lilliput.frameworks.torch.backend import TorchBackend, strip
from lilliput.frameworks.torch.cutting import named_tensors
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.weights import is_sharded
from lilliput.frameworks.torch.wrapper import (
    Link,
    ModuleWrapper,
    PrunerModuleWrapper,
    QuantizerModuleWrapper,
)

_REPLICATORS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _has_compressor(module: Any) -> bool:
    return isinstance(module, ModuleWrapper) and module.compressor is not None


def check_model(model: nn.Module) -> None:
    """Raise if a model cannot be shrunk in its current form."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a torch.nn.Module."
        )
    if torch.is_inference_mode_enabled():
        raise StageError(
            "speedup under torch.inference_mode() would create weights that cannot be trained."
        )
    modules: set[Any] = set(model.modules())
    for module in modules:
        if isinstance(module, _REPLICATORS):
            raise StageError(
                f"a {type(module).__name__} stores the shapes of its parameters; shrink model.module "
                "in every process, and wrap it again."
            )
        bound = module.compressor.bound_model if _has_compressor(module) else None
        if bound is not None and unwrapped(bound) not in modules:
            raise StageError(
                f"{type(module.compressor).__name__} is attached to a larger model than this part of it; "
                "pass the whole model to speedup."
            )
        if isinstance(module, QuantizerModuleWrapper):
            raise StageError(
                f"layer {module.name!r} is under {type(module.compressor).__name__}; shrink first and "
                "quantize the smaller model."
            )
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise UnsupportedModelError(
                f"{name!r} is spread over processes; gather the model, shrink it, and shard it again."
            )


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Raise if an optimizer has state that cannot be cut along with the parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UnsupportedModelError(
            f"optimizer: received {type(optimizer).__name__}, expected a torch.optim.Optimizer."
        )
    for name, parameter in model.named_parameters():
        for key, record in optimizer.state.get(parameter, {}).items():
            fits = not isinstance(record, Tensor) or record.dim() == 0
            if not fits and record.shape != parameter.shape:
                raise UnsupportedModelError(
                    f"optimizer: {type(optimizer).__name__} keeps {key!r} of shape "
                    f"{tuple(record.shape)} for {name!r}, which cannot be cut along; create a new "
                    "optimizer after speedup."
                )


def _compressors_on(model: nn.Module, kind: type[ModuleWrapper] = ModuleWrapper) -> list[Any]:
    wrappers = [m for m in model.modules() if isinstance(m, kind)]
    found = {id(w.compressor): w.compressor for w in wrappers if w.compressor is not None}
    return list(found.values())


def _pruners_on(model: nn.Module) -> list[Any]:
    return _compressors_on(model, PrunerModuleWrapper)


def find_known_groups(model: nn.Module, plain: nn.Module, example_inputs: Any) -> Any:
    """Return the groups that a pruner of the model knows for such inputs, or None."""
    tensors = named_tensors(plain)
    wanted = _signature(as_inputs(example_inputs))
    for pruner in _pruners_on(model):
        groups = getattr(getattr(pruner, "layout", None), "groups", None)
        analysis = getattr(groups, "analysis", None)
        if analysis is None or _signature(analysis.graph.source.call) != wanted:
            continue
        shapes = {name: value.shape for name, value in analysis.axes.items()}
        if all(name in tensors and tensors[name].shape == shape for name, shape in shapes.items()):
            return groups
    return None


def _signature(inputs: Any) -> Any:
    leaves, structure = tree_flatten(inputs)
    return structure, [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves]


def find_left_masks(model: nn.Module) -> list[str]:
    """Return the pruners whose masks will no longer be enforced, apart from the structured ones."""
    return [
        type(pruner).__name__
        for pruner in _pruners_on(model)
        if not getattr(getattr(pruner, "layout", None), "is_traced", False)
    ]


def find_unready(model: nn.Module) -> str:
    """Return what pruners are waiting for, as the start of a sentence."""
    waiting = [
        type(pruner).__name__
        for pruner in _pruners_on(model)
        if getattr(pruner, "masker", None) is not None and not pruner.masker.is_ready()
    ]
    return f"{waiting[0]} has not seen its data yet (train, or calibrate()), so " if waiting else ""


def optimizer_of(model: nn.Module) -> Any:
    """Return the optimizer that a pruner of the model follows, or None."""
    optimizers = [pruner.optimizer for pruner in _pruners_on(model)]
    return next((x for x in optimizers if x is not None), None)


def free_copy(model: nn.Module) -> nn.Module:
    """Return a copy with the same masks that no compressor knows."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, ModuleWrapper):
            module._link = Link()
    return twin


def release(model: nn.Module) -> None:
    """Detach every compressor from a model, with its masks left as zeros."""
    compressors = _compressors_on(model)
    TorchBackend().widen_norms(model)
    for compressor in compressors:
        compressor.strip()
    strip(model)
