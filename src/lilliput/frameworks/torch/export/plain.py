"""The compressed model as a plain one: state dict, masks and ONNX, all written or none."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import ExportError
from lilliput.extras import require
from lilliput.files import write_atomically
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.files import dump_tensors
from lilliput.frameworks.torch.instrument import detach
from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar, narrow_of
from lilliput.frameworks.torch.weights import raw, whole
from lilliput.frameworks.torch.wrapper import PrunerModuleWrapper

_PICKLED = (".pt", ".pth", ".bin", ".tar", ".ckpt")


def export_plain(model: nn.Module, wrappers: Sequence[Any], files: PlainFiles) -> None:
    """Write the compressed model, its masks and an ONNX file."""
    model_path, mask_path, onnx_path = files.model_path, files.mask_path, files.onnx_path
    paths = [_checked(p) for p in (model_path, mask_path, onnx_path) if p is not None]
    if len(set(paths)) < len(paths):
        raise ExportError("model_path, mask_path and onnx_path must be different files.")
    if onnx_path is not None and files.input_shape is None:
        raise ExportError("onnx_path needs input_shape, such as (1, 3, 224, 224).")
    check_norms(unwrapped(model))
    state = compressed_state_dict(unwrapped(model))
    contents = [_encode(state, model_path)]
    if mask_path is not None:
        contents.append(_encode(_masks_of(unwrapped(model), wrappers), mask_path))
    if onnx_path is not None and files.input_shape is not None:
        contents.append(encode_onnx(model, state, onnx_path, files.input_shape, files.device))
    for path, data in zip(paths, contents, strict=True):
        write_atomically(path, data)


def check_norms(model: nn.Module) -> None:
    """Raise if a plain model with the same weights would not compute the same."""
    for path, module in model.named_modules():
        if narrow_of(module) is not None:
            raise ExportError(
                f"layer {path!r} computes its statistics over kept channels only, which a plain model with "
                "masked weights would not; shrink the model with speedup(model, example_inputs) first."
            )


def compressed_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model, with all masks and weight quantization applied."""
    modules = list(model.named_modules(remove_duplicate=False))
    ours = tuple(f"{path}." for path, module in modules if isinstance(module, Sidecar))
    state = {k: v for k, v in model.state_dict().items() if not (ours and k.startswith(ours))}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ExportError(f"{key!r} in the state dict is not a tensor; it cannot be exported.")
        state[key] = value.detach()
    with torch.no_grad():
        for path, module in modules:
            sidecar: Any = module._modules.get(SIDECAR)
            if isinstance(sidecar, Sidecar):
                _check_activations(sidecar)
                for name in sidecar.chains:
                    key = f"{path}.{name}" if path else name
                    if key not in state:
                        raise ExportError(
                            f"{key!r} is computed by a parametrization, so its compressed value cannot be "
                            "stored in the state dict; remove the parametrization first."
                        )
                    value = sidecar.transform(name, whole(raw(module, name)))
                    state[key] = value.detach()
    return state


def plain_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the model without any instrumentation; masks are not applied."""
    duplicate = copy.deepcopy(unwrapped(model))
    for module in list(duplicate.modules()):
        sidecar = module._modules.get(SIDECAR)
        if isinstance(sidecar, Sidecar):
            for wrapper in list(sidecar._modules.values()):
                detach(module, wrapper)
    return duplicate


def _check_activations(sidecar: Any) -> None:
    for wrapper in sidecar._modules.values():
        if {"input", "output"} & set(wrapper.roles):
            raise ExportError(
                f"layer {wrapper.name!r} has quantized activations, which a plain state dict cannot "
                "represent; export them with export_onnx(quantizer, path, example_inputs), quantize weights "
                "only, or keep the quantizer's state()."
            )


def _checked(path: Any) -> Path:
    try:
        target = Path(path)
    except TypeError:
        raise ExportError(f"received {path!r} as a path, expected a string.") from None
    if not target.parent.is_dir() or target.is_dir():
        what = "is a folder" if target.is_dir() else "is in a folder that does not exist"
        raise ExportError(f"{target}: it {what}; pass the path of a file.")
    return target


def _masks_of(model: nn.Module, wrappers: Sequence[Any]) -> dict[str, Tensor]:
    """Return the joined masks of all pruners of the model, or those of a stripped pruner."""
    attached = [module for module in model.modules() if isinstance(module, PrunerModuleWrapper)]
    masks: dict[str, Tensor] = {}
    for wrapper in attached or wrappers:
        for key in ("weight_mask", "bias_mask"):
            mask = wrapper._buffers.get(key)
            # A companion is named after its parameter: 'bn1.bias' has the mask 'bn1.bias_mask'.
            is_companion = wrapper.layer_info.is_parameter
            name = f"{wrapper.name}_mask" if is_companion else f"{wrapper.name}.{key}"
            if mask is not None:
                masks[name] = mask if name not in masks else masks[name] * mask
    if not masks:
        raise ExportError("mask_path: no pruner is attached to this model, so there are no masks.")
    return masks


def _encode(tensors: Mapping[str, Tensor], path: str) -> bytes:
    suffix = Path(path).suffix
    if suffix == ".safetensors":
        return dump_tensors(tensors)
    if suffix not in _PICKLED:
        raise ExportError(f"{path}: expected a name ending in .safetensors, .pt or .pth.")
    buffer = io.BytesIO()
    torch.save({key: whole(t.detach()).cpu().clone() for key, t in tensors.items()}, buffer)
    return buffer.getvalue()


def encode_onnx(
    model: nn.Module, state: Mapping[str, Tensor], path: str, shape: tuple[int, ...], device: Any
) -> bytes:
    """Return the plain model with these weights as the bytes of an ONNX file."""
    for name in ("onnx", "onnxscript"):
        require(name, "writing ONNX needs pip install 'lilliput[onnx]'")
    plain = plain_copy(model)
    plain.load_state_dict({key: whole(value) for key, value in state.items()})
    place = device or next((t.device for t in state.values()), torch.device("cpu"))
    try:
        example = torch.randn(tuple(shape), device=place)
        with warnings.catch_warnings():
            # torch's exporter calls deprecated functions of torch, which users cannot avoid.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            program = torch.onnx.export(
                plain.to(place).eval(), (example,), dynamo=True, verbose=False
            )
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ExportError(
            f"{path}: torch could not trace the model with an input of shape {tuple(shape)}: "
            f"{type(error).__name__}: {reason[0] if reason else ''}"
        ) from error
    if program is None:
        raise ExportError(f"{path}: torch.onnx.export returned nothing.")
    data: bytes = program.model_proto.SerializeToString()
    return data
