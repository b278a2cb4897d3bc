"""Tensors to safetensors and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lilliput.backends.torch.weights import whole
from lilliput.errors import StateError


def dump_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    from safetensors.torch import save

    # safetensors refuses tensors that share memory; tied weights are written once per name.
    return save({key: whole(t.detach()).cpu().contiguous().clone() for key, t in tensors.items()})


def parse_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise StateError(f"not a safetensors file: {error}") from error
