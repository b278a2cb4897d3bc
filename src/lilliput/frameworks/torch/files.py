"""Read and write tensors as safetensors, and as bits that any framework can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from lilliput.errors import StateError
from lilliput.frameworks.torch.weights import local, whole

_MOST_BYTES = 8  # of a number


def dump_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file; tied weights are written once per name."""
    from safetensors import TensorSpec, serialize  # imported here to keep importing Lilliput fast

    plain = {key: _in_memory(t) for key, t in tensors.items()}
    # Directly from torch's memory, because safetensors.torch.save would need NumPy.
    specs = {
        key: TensorSpec(
            dtype=str(t.dtype).removeprefix("torch."),
            shape=list(t.shape),
            data_ptr=t.data_ptr(),
            data_len=t.nbytes,
        )
        for key, t in plain.items()
    }
    return bytes(serialize(specs))


def parse_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise StateError(f"not a safetensors file: {error}") from error


def check_storable(state: Mapping[str, Tensor]) -> None:
    """Raise for tensors that a file cannot store: those without values, and those that are not arrays."""
    for name, tensor in state.items():
        if is_lazy(tensor):
            why = "has no shape yet; call the model once first"
        elif tensor.is_meta:
            why = "is on the meta device, where tensors have no values; move the model with to_empty() first"
        elif tensor.layout is not torch.strided:
            why = f"has the layout {tensor.layout}; expected a dense tensor: call to_dense() on it first"
        elif tensor.is_quantized or tensor.element_size() > _MOST_BYTES:
            why = f"has the type {type_of(tensor)}, which weight files do not support; convert it first"
        else:
            continue
        raise StateError(f"tensor {name!r} {why}.")


def check_writable(state: Mapping[str, Tensor]) -> None:
    """Raise for tensors of a model that cannot be loaded, because several of their entries are one number."""
    for name, tensor in state.items():
        own = local(tensor)
        steps = zip(own.stride(), own.shape, strict=True)
        if own.numel() and any(step == 0 and size > 1 for step, size in steps):
            raise StateError(
                f"tensor {name!r} of this model was made by expand(), so that several of its entries are one "
                "number in memory; call clone() on it in the model."
            )


def check_tied(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise if tensors differ that are a single tensor in the model: the first would be lost.

    Parameters
    ----------
    state : dict
        The state dict of the model.
    tensors : dict
        The tensors to load into it.
    """
    known: dict[Any, str] = {}
    for name, held in state.items():
        if name not in tensors or not held.numel():
            continue
        own = local(held)
        first = known.setdefault((own.data_ptr(), own.dtype, own.shape, own.stride()), name)
        if first != name and not _is_same(tensors[first], tensors[name]):
            raise StateError(
                f"{first!r} and {name!r} are one tensor in this model, but differ in the file; untie them "
                "in the model, or save a model in which they are tied."
            )


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    (dtype, bits), (other_dtype, other_bits) = to_bits(one), to_bits(other)
    return dtype == other_dtype and bits.shape == other_bits.shape and (bits == other_bits).all()


def type_of(tensor: Tensor) -> str:
    """Return the name of a tensor's type in NumPy."""
    return str(tensor.dtype).removeprefix("torch.")


def to_bits(tensor: Tensor) -> tuple[str, Any]:
    """Return a tensor's type, and its bits as unsigned integers in its shape."""
    plain = _in_memory(tensor)
    data = plain.reshape(-1).view(torch.uint8).numpy()
    return type_of(plain), data.view(f"u{plain.element_size()}").reshape(tuple(plain.shape))


def _in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values one after the other, not those of which it is a view."""
    return whole(tensor.detach()).cpu().resolve_conj().resolve_neg().contiguous()


def from_bits(dtype: str, bits: Any) -> Tensor:
    """Return the tensor that :func:`to_bits` described."""
    data = torch.from_numpy(bits.reshape(-1).view("u1"))
    return data.view(getattr(torch, dtype)).reshape(bits.shape)
