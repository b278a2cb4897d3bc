"""Raw weights: the trainable parameter behind a compressed attribute, whole or sharded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lilliput.frameworks.torch.first_state import UnknownStateError, first_values

_MULTIPLIED = (torch.float32, torch.float64)
_BLOCK = 131_072  # numbers


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is sharded across several processes (a DTensor)."""
    return type(tensor) is not nn.Parameter and hasattr(tensor, "device_mesh")


def raw(module: nn.Module, name: str) -> Any:
    """Return the parameter of the module, or the value of a parametrized one."""
    if name in module._parameters:
        return module._parameters[name]
    held = module.__dict__.get(name)
    if held is not None:  # a replica of DataParallel keeps its copies as plain attributes
        return held
    for cls in type(module).__mro__:
        # A shadow's own property calls this; it may be below a class added by FSDP2.
        if name in cls.__dict__ and "_lilliput_base" not in cls.__dict__:
            inherited = cls.__dict__[name]
            return inherited.fget(module) if isinstance(inherited, property) else None  # type: ignore[misc]
    return None


@torch.no_grad()
def _put_back(buffers: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in buffers:
        if not torch.equal(buffer, before):
            buffer.copy_(before)


def peek(module: nn.Module, name: str) -> Any:
    """Return the same as :func:`raw`, without side effects.

    Reading a parametrization may change its buffers, as spectral_norm does in training mode.
    """
    if not is_parametrized(module, name):
        return raw(module, name)
    parametrization: Any = module.parametrizations[name]  # type: ignore[index]
    modes = [(x, x.training) for x in parametrization.modules()]
    buffers = [(x, x.detach().clone()) for x in parametrization.buffers()]
    parametrization.eval()
    try:
        return raw(module, name)
    finally:
        _put_back(buffers)
        for part, is_training in modes:
            part.training = is_training


def names_of(module: nn.Module, name: str | None) -> list[str]:
    """Return every name under which a module has the same parameter, the given one first."""
    if name is None:
        return []
    parameter = module._parameters.get(name)
    others = [x for x, held in module._parameters.items() if held is parameter and x != name]
    return [name, *(others if parameter is not None else [])]


def unshadowed(cls: type) -> type:
    """Return the class that a shadow class was created from, or the class itself."""
    base: type = cls.__dict__.get("_lilliput_base", cls)
    return base


def plain_type(cls: type) -> type:
    """Return the user's class, below those added by shadows and FSDP2."""
    while True:
        base = unshadowed(cls)
        if base is cls and cls.__bases__[0].__name__ == "FSDPModule":
            base = cls.__bases__[1]
        if base is cls:
            return cls
        cls = base


def whole(tensor: Any) -> Tensor:
    """Return a weight in full; a sharded one is gathered, so all processes must call this."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return gathered


def local(tensor: Any) -> Tensor:
    """Return this process's part of a tensor, in the same memory."""
    found: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor
    return found


def is_binary(mask: Tensor) -> bool:
    """Whether a tensor contains only zeros and ones, as a mask must."""
    return mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all())


def zero_(tensor: Any, mask: Tensor) -> None:
    """Set masked entries to zero in place, in a weight or in its gradient.

    Multiplying is ten times faster than filling on a CPU, and right unless zero meets infinity or NaN.
    """
    for part, kept in in_blocks(*_local(tensor, mask)):
        if part.device.type == "cpu" and part.dtype in _MULTIPLIED:
            part.mul_(ones_of(kept, part.dtype)).add_(0.0)  # zero where it was minus zero
            if math.isfinite(float(part.sum())):
                continue
        part.masked_fill_(kept == 0, 0)


def is_zero_at(tensor: Tensor, mask: Tensor) -> bool:
    """Whether a tensor is zero already wherever a mask prunes; False if it is not finite there."""
    return all(
        not part.numel() or float((part * ones_of(kept, part.dtype)).sub_(part).abs().amax()) == 0.0
        for part, kept in in_blocks(tensor, mask)
    )


def ones_of(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask in a type, one wherever it is not zero.

    The sign of floating-point numbers is found several times faster than a comparison on a CPU.
    """
    if mask.is_floating_point():
        return mask.sign().abs_().to(dtype)
    return (mask != 0).to(dtype)


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield blocks of rows of tensors of one shape, so that intermediate results stay in the cache."""
    shape = tensors[0].shape
    if tensors[0].numel() <= _BLOCK or not shape:
        yield tensors
        return
    step = max(1, _BLOCK // max(1, shape[1:].numel()))
    yield from zip(*(torch.split(tensor, step) for tensor in tensors), strict=True)


def write_(tensor: Any, value: Tensor) -> None:
    """Overwrite a weight in place; every process has the whole value, and writes its own part."""
    if not is_sharded(tensor):
        tensor.copy_(value)
        return
    from torch.distributed.tensor import distribute_tensor

    place = (tensor.device_mesh, tensor.placements)
    tensor.to_local().copy_(distribute_tensor(value, *place, src_data_rank=None).to_local())


def hold_(pairs: Iterable[tuple[Any, Tensor]]) -> None:
    """Set masked entries to zero in place, after an optimizer step.

    Multiplying is ten times faster than filling, and right unless the optimizer turned a zero gradient
    into NaN, as Adam does in half precision, where its eps is zero.
    """
    tensors, masks = [], []
    for tensor, mask in pairs:
        if tensor.dtype == torch.float16:
            zero_(tensor, mask)
        else:
            local, part = _local(tensor, mask)
            tensors.append(local)
            masks.append(part if part.dtype == local.dtype else part.to(local.dtype))
    if tensors:
        torch._foreach_mul_(tensors, masks)


def _local(tensor: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sharded tensor's part in this process, and the same part of its mask."""
    if not is_sharded(tensor):
        return tensor, mask
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole mask and can cut its own part without communication.
    place = (tensor.device_mesh, tensor.placements)
    return tensor.to_local(), distribute_tensor(mask, *place, src_data_rank=None).to_local()


def forget_(optimizer: torch.optim.Optimizer, parameter: Tensor, mask: Tensor) -> None:
    """Reset the optimizer state of the pruned entries, such as momentum, to that of new weights."""
    state = optimizer.state.get(parameter, {})
    names = [k for k, x in state.items() if isinstance(x, Tensor) and x.shape == parameter.shape]
    if not names:
        return
    try:
        first = first_values(optimizer, parameter)
    except UnknownStateError:  # refused by algorithms whose weights come back
        first = {}
    for name in names:
        record, value = state[name], first.get(name, 0.0)
        if value is None:
            continue
        if record.is_sparse:  # the momentum of an Embedding(sparse=True)
            kept = record.to_dense() * (mask != 0)
            record.copy_(kept.to_sparse(record.sparse_dim()))
        else:
            local, part = _local(record, mask)
            local.masked_fill_(part == 0, value)


def is_parametrized(module: nn.Module, name: str) -> bool:
    """Whether ``torch.nn.utils.parametrize`` computes this attribute."""
    return parametrize.is_parametrized(module, name)


def weight_names(module: nn.Module) -> list[str]:
    """Return the attributes that are this module's own weights, its main one first.

    ``weight`` if there is one; otherwise every parameter with "weight" in its name (LSTM,
    MultiheadAttention); otherwise every parameter of two or more dimensions.
    """
    names = [name for name, value in module._parameters.items() if value is not None]
    names += list(getattr(module, "parametrizations", ()))
    if "weight" in names:
        return ["weight"]
    spoken = [name for name in names if "weight" in name]
    return spoken or [name for name in names if _dimensions(module, name) >= 2]


def bias_name(module: nn.Module, weight: str) -> str | None:
    """Return the bias that belongs to a weight: the same name with 'bias' in it."""
    name = weight.replace("weight", "bias")
    has_one = name != weight and module._parameters.get(name) is not None
    return name if has_one else None


def _dimensions(module: nn.Module, name: str) -> int:
    value = peek(module, name)
    return value.dim() if isinstance(value, Tensor) else 0


def floating(tensors: Iterable[Any]) -> list[int]:
    """Return the positions of floating-point tensors in a call's arguments."""
    return [i for i, x in enumerate(tensors) if isinstance(x, Tensor) and x.is_floating_point()]
