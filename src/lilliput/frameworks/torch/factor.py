"""Replace one layer by two: the torch part of factorization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.reads import reads_of
from lilliput.frameworks.torch.sidecar import SIDECAR
from lilliput.frameworks.torch.unregistered import find_unregistered
from lilliput.frameworks.torch.weights import is_parametrized, is_sharded, plain_type

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# In evaluation it passes the weights of its parts to one fused kernel.
_READER = nn.TransformerEncoderLayer
_SEQUENTIAL = nn.Sequential()  # replaces a layer


References = Mapping[int, Sequence[tuple[nn.Module, str]]]  # of find_unregistered()


def references_in(model: nn.Module) -> References:
    """Return what modules hold besides their registered children, for :func:`problem_of`."""
    return find_unregistered(unwrapped(model))


def problem_of(model: nn.Module, layer: LayerInfo, references: References) -> str:
    """Return the change that the user has to make before a layer can be replaced, or ''."""
    module = layer.module
    if SIDECAR in module._modules:
        return (
            "has a pruner or a quantizer attached; call its strip() first, or factorize before "
            "attaching it"
        )
    if module is unwrapped(model):
        return "is the whole model, without a parent to replace it in; put it into a Sequential"
    if is_sharded(module._parameters.get(str(layer.weight_name))):
        return "is sharded across processes; factorize before fully_shard()"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return "has hooks, which would be lost; remove them or exclude it"
    for parent, path in _holders(model, layer):
        is_torch = type(parent).__module__.startswith("torch.")  # see obstacle_of()
        for read in () if is_torch else reads_of(parent, path):
            if not hasattr(_SEQUENTIAL, read.attribute):
                return (
                    f"is used directly: {read.place} reads its {read.attribute!r}, which two layers "
                    "do not have; exclude it"
                )
    return _problem_of_references(layer, references)


def _problem_of_references(layer: LayerInfo, references: References) -> str:
    """Return which module would continue to use a layer after its replacement, or ''."""
    modules = [owner.module for owner in layer.owners]
    weights = [module._parameters.get(str(layer.weight_name)) for module in modules]
    for held in (*modules, *weights):
        for holder, attribute in references.get(id(held), ()):
            if not any(holder is module for module in modules):
                part = "" if isinstance(held, nn.Module) else "'s weight"
                return (
                    f"would still be used after its replacement: {plain_type(type(holder)).__name__} "
                    f"holds the layer{part} in its attribute {attribute!r}; keep layers in an nn.ModuleList "
                    "or nn.ModuleDict and call them from there, or exclude it"
                )
    return ""


def obstacle_of(model: nn.Module, layer: LayerInfo) -> str:
    """Return why one layer cannot be replaced by two, or '' if it can."""
    module = layer.module
    if any(isinstance(parent, _READER) for parent in _parents(model, layer)):
        return "its parent also reads its weight, in evaluation"
    if type(module) is not nn.Linear and type(module) not in _CONVOLUTIONS:
        return f"it is a {layer.type}, not a Linear, Conv1d, Conv2d or Conv3d"
    if getattr(module, "groups", 1) > 1:
        return "it has groups"
    if layer.is_bypassed:
        return "its parent reads its weight and does not call it"
    if len(layer.owners) > 1:
        return "it shares its weight with another layer"
    name = str(layer.weight_name)
    if is_parametrized(module, name) or name not in module._parameters:
        return "its weight is computed (a parametrization)"
    return ""


def _parents(model: nn.Module, layer: LayerInfo) -> list[nn.Module]:
    """Return the parent modules of a layer."""
    return [parent for parent, path in _holders(model, layer) if "." not in path]


def _holders(model: nn.Module, layer: LayerInfo) -> Iterator[tuple[nn.Module, str]]:
    """Yield each module that contains a layer, and the path of the layer in it."""
    for parts in (path.split(".") for owner in layer.owners for path in owner.paths):
        for i in range(len(parts)):
            holder = unwrapped(model).get_submodule(".".join(parts[:i]))
            yield holder, ".".join(parts[i:])


def two_layers(layer: LayerInfo, left: Any, right: Any) -> tuple[nn.Module, nn.Module]:
    """Return layers with the weights ``right`` (rank, inputs) and ``left`` (outputs, rank)."""
    module: Any = layer.module
    rank, weight = len(right), module.weight
    made = {"device": weight.device, "dtype": weight.dtype}
    first: Any
    second: Any
    if isinstance(module, nn.Linear):
        first = nn.Linear(module.in_features, rank, bias=False, **made)
        second = nn.Linear(rank, module.out_features, bias=module.bias is not None, **made)
    else:
        cls: Any = type(module)
        shape = {k: getattr(module, k) for k in ("kernel_size", "stride", "padding", "dilation")}
        mode = {"padding_mode": module.padding_mode}
        first = cls(module.in_channels, rank, **shape, **mode, bias=False, **made)
        second = cls(rank, module.out_channels, 1, bias=module.bias is not None, **made)
    with torch.no_grad():
        first.weight.copy_(torch.as_tensor(right).reshape(first.weight.shape))
        second.weight.copy_(torch.as_tensor(left).reshape(second.weight.shape))
    for made_of in (first, second):
        made_of.weight.requires_grad_(weight.requires_grad)
        made_of.train(module.training)
    if module.bias is not None:
        second.bias = module.bias  # the same parameter
    return first, second


def replace_layers(
    model: nn.Module, pairs: Sequence[tuple[LayerInfo, nn.Module, nn.Module]]
) -> None:
    """Replace each layer by its pair, everywhere it occurs."""
    for layer, first, second in pairs:
        both = nn.Sequential(first, second).train(layer.module.training)
        for path in layer.owners[0].paths:
            parent, _, name = path.rpartition(".")
            holder = unwrapped(model).get_submodule(parent)
            setattr(holder, name, both)


def count_bytes(model: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a model, and the bytes of its state dict."""
    tensors = {x.data_ptr(): x for x in model.state_dict().values() if isinstance(x, torch.Tensor)}
    sizes = [x.numel() * x.element_size() for x in tensors.values()]
    return sum(p.numel() for p in model.parameters()), sum(sizes)


def tolerance(weight: torch.Tensor, close: float) -> float:
    """Return the tolerance of products in a tensor's precision."""
    return max(close, 8 * torch.finfo(weight.dtype).eps)
