"""Tensors to files and back, and the compressed model as a plain one. No pickle is ever read."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.backends.torch.discover import unwrapped
from lilliput.backends.torch.instrument import SIDECAR, detach
from lilliput.backends.torch.weights import raw, whole
from lilliput.errors import ExportError, MissingExtraError
from lilliput.files import write_atomically


def dump_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    from safetensors.torch import save

    # safetensors refuses tensors that share memory; tied weights are written once per name.
    plain = {key: whole(t.detach()).cpu().contiguous().clone() for key, t in tensors.items()}
    return save(plain)


def parse_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def compressed_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model, with all masks and weight quantization applied."""
    marker = f"{SIDECAR}."
    state = {
        key: value.detach()
        for key, value in model.state_dict().items()
        if not key.startswith(marker) and f".{marker}" not in key
    }
    with torch.no_grad():
        for path, module in model.named_modules(remove_duplicate=False):
            sidecar: Any = module._modules.get(SIDECAR)
            if sidecar is None:
                continue
            for key in (*sidecar.input_keys, *sidecar.output_keys):
                raise ExportError(
                    f"layer {sidecar._modules[key].name!r} has quantized activations, which a plain "
                    "state dict cannot hold; quantize weights only, or keep the quantizer's state()."
                )
            for name in sidecar.chains:
                value = sidecar.transform(name, whole(raw(module, name))).detach()
                keys = {f"{path}.{name}" if path else name}
                state.update(dict.fromkeys(keys & state.keys(), value))
    return state


def export_plain(
    model: nn.Module,
    wrappers: Sequence[Any],
    model_path: str,
    mask_path: str | None = None,
    onnx_path: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    device: Any = None,
) -> None:
    """Write the compressed model, its masks and an ONNX file."""
    if onnx_path is not None and input_shape is None:
        raise ExportError("onnx_path needs input_shape, such as (1, 3, 224, 224).")
    state = compressed_state_dict(unwrapped(model))
    _write(state, model_path)
    if mask_path is not None:
        masks = {
            f"{wrapper.name}.{key}": mask
            for wrapper in wrappers
            for key, mask in wrapper.named_buffers()
            if key in ("weight_mask", "bias_mask")
        }
        _write(masks, mask_path)
    if onnx_path is not None and input_shape is not None:
        _write_onnx(model, state, onnx_path, input_shape, device)


def _write(tensors: Mapping[str, Tensor], path: str) -> None:
    target = Path(path)
    if target.suffix == ".safetensors":
        data = dump_tensors(tensors)
    elif target.suffix in (".pt", ".pth", ".bin", ".tar", ".ckpt"):
        buffer = io.BytesIO()
        torch.save({key: whole(t.detach()).cpu().clone() for key, t in tensors.items()}, buffer)
        data = buffer.getvalue()
    else:
        raise ExportError(f"{target.name}: expected a name ending in .safetensors, .pt or .pth.")
    write_atomically(target, data)


def _write_onnx(
    model: nn.Module, state: Mapping[str, Tensor], path: str, shape: tuple[int, ...], device: Any
) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "writing ONNX needs two packages: pip install 'lilliput[onnx]'"
        ) from error
    plain = plain_copy(model)
    plain.load_state_dict(state)
    place = device or next((t.device for t in state.values()), torch.device("cpu"))
    example = torch.randn(shape, device=place)
    program = torch.onnx.export(plain.to(place).eval(), (example,), dynamo=True, verbose=False)
    if program is None:
        raise ExportError(f"{path}: torch.onnx.export returned nothing.")
    write_atomically(Path(path), program.model_proto.SerializeToString())


def plain_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the model without any instrumentation; masks are not applied."""
    duplicate = copy.deepcopy(unwrapped(model))
    for module in list(duplicate.modules()):
        sidecar = module._modules.get(SIDECAR)
        if sidecar is not None:
            for wrapper in list(sidecar._modules.values()):
                detach(module, wrapper)
    return duplicate
