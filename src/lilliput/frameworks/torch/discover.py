"""Find the layers of a model: one LayerInfo per weight; tied weights are joined, model wrappers skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lilliput.config.layer import LayerInfo, Owner
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.sidecar import Sidecar
from lilliput.frameworks.torch.weights import bias_name, peek, plain_type, unshadowed, weight_names

# The meaning of 'default': layers with most of the weights, never norm layers.
DEFAULT_TYPES = frozenset(
    {
        *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("Linear", "Bilinear", "PReLU", "Embedding", "EmbeddingBag", "MultiheadAttention"),
        *("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"),
    }
)


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def discover(model: nn.Module) -> list[LayerInfo]:
    """Return every layer that can be compressed, in the order of ``named_modules()``.

    A layer is a module with its own weights, or a leaf without any (an activation). Prefixes of
    DistributedDataParallel, DataParallel and torch.compile are removed from the names.
    """
    found: list[LayerInfo] = []
    by_weight: dict[int, int] = {}
    places = list(_walk(unwrapped(model)))
    for paths, module, is_bypassed in places:
        path = paths[0]
        names: list[str | None] = [*weight_names(module)]
        has_children = any(not isinstance(child, Sidecar) for child in module.children())
        if not names and not has_children:
            names = [None]
        for name in names:
            weight = None if name is None else peek(module, name)
            if name is not None and not _is_usable(weight, path, name):
                continue
            bias = None if name is None else bias_name(module, name)
            owner = Owner(paths, module, name, bias)
            is_held = name is not None and module._parameters.get(name) is weight
            if is_held and id(weight) in by_weight:
                index = by_weight[id(weight)]
                found[index] = _join(found[index], owner)
                continue
            if is_held:  # a parametrization computes another tensor at each read
                by_weight[id(weight)] = len(found)
            full_name = path if len(names) == 1 and path else ".".join(filter(None, (path, name)))
            cls = plain_type(type(module))
            shape = () if weight is None else tuple(weight.shape)
            layer = LayerInfo(
                full_name, cls.__name__, (owner,), shape, _type_names(cls), is_bypassed
            )
            found.append(replace(layer, **_axes(module)))
    for paths, module, _ in places:
        for name, parameter in module._parameters.items():
            index = by_weight.get(id(parameter), -1)
            # Another module may have a layer's weight under a name that is not that of a weight.
            if index >= 0 and all(owner.module is not module for owner in found[index].owners):
                found[index] = _join(found[index], Owner(paths, module, name, None))
    return found


def parts_of(model: nn.Module) -> list[tuple[str, Any]]:
    """Return every module of a model under all its paths, each followed by its parameters."""
    found: list[tuple[str, Any]] = []
    for path, module in unwrapped(model).named_modules(remove_duplicate=False):
        found += [(path, module), *module._parameters.items()]
    return found


def find_modules(model: nn.Module) -> list[LayerInfo]:
    """Return every module, the model itself first, as entries with an output."""
    found = []
    for paths, module, is_bypassed in _walk(unwrapped(model)):
        cls, owner = plain_type(type(module)), Owner(paths, module, None, None)
        layer = LayerInfo(paths[0], cls.__name__, (owner,), (), _type_names(cls), is_bypassed)
        found.append(replace(layer, **_axes(module)))
    return found


def find_parameters(model: nn.Module) -> dict[str, LayerInfo]:
    """Return every floating-point parameter under all its full names, each as its own layer."""
    found: dict[int, LayerInfo] = {}
    for paths, module, _ in _walk(unwrapped(model)):
        for name in (*module._parameters, *getattr(module, "parametrizations", ())):
            value = peek(module, name)
            if not isinstance(value, Tensor) or value.dtype not in _DTYPES:
                continue
            owner = Owner(paths, module, name, None)
            key = id(value if name in module._parameters else owner)
            if key in found:
                found[key] = _join(found[key], owner)
                continue
            full_name = f"{paths[0]}.{name}" if paths[0] else name
            shape, cls = tuple(value.shape), plain_type(type(module))
            layer = LayerInfo(full_name, cls.__name__, (owner,), shape, is_parameter=True)
            found[key] = layer
    return {name: layer for layer in found.values() for name in layer.tensor_names}


def _axes(module: nn.Module) -> dict[str, Any]:
    """Return the channel axes of a layer; see LayerInfo."""
    if isinstance(module, nn.modules.conv._ConvNd):
        axes: dict[str, Any] = {"channel_axis": -1 - len(module.kernel_size)}
        if module.transposed:
            axes |= {"out_axis": 1, "in_axis": 0, "out_groups": module.groups}
        return axes
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        # The input of a BatchNorm1d is (N, C) or (N, C, L): the axis from the start is the same.
        return {"channel_axis": 1}
    is_transposed = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or (
        type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
    )
    return {"out_axis": 1, "in_axis": 0} if is_transposed else {}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's model inside DDP, DataParallel or a compiled module."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _walk(model: nn.Module) -> Iterator[tuple[tuple[str, ...], nn.Module, bool]]:
    """Yield each module with all its paths, and whether its parent bypasses its forward."""
    places: dict[nn.Module, list[str]] = {}
    bypassed = set()
    hidden: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{path or 'the model'} is a ScriptModule, whose code is fixed; compress the Python "
                "module before scripting it."
            )
        if isinstance(module, Sidecar) or path.rpartition(".")[2] == "parametrizations":
            hidden.append(f"{path}.")
        elif not f"{path}.".startswith(tuple(hidden)):
            places.setdefault(module, []).append(path)
        if isinstance(module, nn.MultiheadAttention):
            bypassed.add(module.out_proj)
    for module, paths in places.items():
        yield tuple(paths), module, module in bypassed


def _is_usable(weight: object, path: str, name: str) -> bool:
    if isinstance(weight, Tensor) and is_lazy(weight):
        raise UnsupportedModelError(
            f"layer {path!r}: its {name} has no shape yet; run one forward pass before compressing."
        )
    return isinstance(weight, Tensor) and weight.dtype in _DTYPES and weight.numel() > 0


def _type_names(cls: type) -> frozenset[str]:
    """Return the class names that match a layer: its own and those of its bases."""
    return frozenset(c.__name__ for c in cls.__mro__ if c not in (nn.Module, object))


def _join(layer: LayerInfo, owner: Owner) -> LayerInfo:
    types = layer.types | _type_names(unshadowed(type(owner.module)))
    return replace(layer, owners=(*layer.owners, owner), types=types)
