"""Tensors to safetensors and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lilliput.errors import StateError
from lilliput.frameworks.torch.weights import whole


def dump_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file; tied weights are written once per name."""
    from safetensors import TensorSpec, serialize  # here: importing Lilliput is to be quick

    plain = {key: whole(t.detach()).cpu().contiguous() for key, t in tensors.items()}
    # Straight from torch's memory: safetensors.torch.save would need NumPy for it.
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
