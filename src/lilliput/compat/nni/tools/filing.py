"""Read and write the files of NNI's programs: tensors in nested dicts, saved by torch.

Reading never unpickles objects, so a file from anywhere is safe to open.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lilliput.errors import ExportError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.export.plain import check_norms, compressed_state_dict, encode_onnx
from lilliput.frameworks.torch.mask_files import apply_masks, check_masks, named_masks, read_masks

PathLike = str | os.PathLike[str]


def write_tensors(value: Mapping[str, Any], path: PathLike) -> None:
    """Write nested dicts of tensors and numbers with ``torch.save``, whatever the file name."""
    target = _checked(path)
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_atomically(target, buffer.getvalue())


def write_model(model: nn.Module, files: PlainFiles) -> None:
    """Write the state dict of the plain model, with masks applied, and an ONNX file of it."""
    _checked(files.model_path)
    onnx_path, shape = files.onnx_path, files.input_shape
    if onnx_path is not None and shape is None:
        raise ExportError("onnx_path needs input_shape, such as (1, 3, 224, 224).")
    check_norms(unwrapped(model))
    state = compressed_state_dict(unwrapped(model))
    onnx = None
    if onnx_path is not None and shape is not None:
        _checked(onnx_path)
        onnx = encode_onnx(model, state, os.fspath(onnx_path), tuple(shape), files.device)
    write_tensors({key: value.cpu().clone() for key, value in state.items()}, files.model_path)
    if onnx is not None:
        write_atomically(onnx_path, onnx)


def read_tensors(given: PathLike | Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return a dict unchanged, or the one in a file."""
    if isinstance(given, Mapping):
        return given
    try:
        return read_masks(Path(given), None)
    except StateError as error:
        raise StateError(str(error).replace("masks", what)) from error


def apply_compression_results(
    model: nn.Module, masks_file: PathLike | Mapping[str, Any], map_location: Any = None
) -> None:
    """Set masked weights to zero, in place; for inference, because nothing keeps them at zero.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    masks_file : path or dict
        Written by ``export_model(mask_path=…)``, here or in NNI.
    map_location : optional
        Where to load the masks; they are moved to the weights in any case.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> apply_compression_results(model, {"0": {"weight": torch.tensor([[1.0, 0.0]])}})
    >>> model[0].weight[0, 1].item()
    0.0
    """
    masks = named_masks(masks_file, map_location)
    check_masks(model, masks)
    apply_masks(model, masks)


def _checked(path: PathLike) -> Path:
    target = Path(path)
    if target.is_dir():
        raise ExportError(f"{target}: it is a folder; pass the path of a file.")
    if not target.parent.is_dir():
        raise ExportError(f"{target}: its folder does not exist; create it first.")
    return target
