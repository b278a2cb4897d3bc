"""``export_model`` of NNI's pruners and quantizers: a plain model, masks, calibration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from lilliput.compat.nni.tools.calibration import (
    calibration_config,
    load_calibration,
    release_scales,
)
from lilliput.compat.nni.tools.filing import PathLike, write_model, write_tensors
from lilliput.core.compressor import Compressor
from lilliput.errors import StageError
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.quantization.ranges import RangeQuantizer


class PrunerFiles(Compressor):
    """Files of a pruner behind NNI's paths."""

    def _write_files(self, files: PlainFiles) -> None:
        """Write the model, and the masks in the nested form of NNI's files."""
        write_model(self.bound_model, files)
        if files.mask_path is not None:
            masks = {w.name: _masks_of(w) for w in self.get_modules_wrapper()}
            write_tensors(masks, files.mask_path)


class QuantizerFiles(Compressor):
    """Files of a quantizer behind NNI's paths."""

    held_scales: tuple[Any, ...] = ()  # layers with the weight scale of a calibration file

    def step(self) -> None:
        """Follow one training step; from then on, scales follow the weights again."""
        release_scales(self.held_scales)
        self.held_scales = ()
        super().step()

    def export_model(  # type: ignore[override]
        self,
        model_path: PathLike,
        calibration_path: PathLike | None = None,
        onnx_path: PathLike | None = None,
        input_shape: tuple[int, ...] | None = None,
        device: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Write the plain model and its ranges; return the latter.

        As in NNI, the weights are the float ones if bits and ranges define how to round them, and the
        rounded ones for algorithms without ranges; afterwards the model is not quantized any more.
        """
        if not self._has_compressed:
            raise StageError("export_model() was called before compress(); call compress() first.")
        config = calibration_config(self)
        shown = {} if isinstance(self, RangeQuantizer) else _shown_weights(self)
        model = self.strip()
        if shown:
            model = copy.deepcopy(unwrapped(model))
            with torch.no_grad():
                for name, value in shown.items():
                    model.get_parameter(name).copy_(value)
        write_model(model, PlainFiles(model_path, None, onnx_path, input_shape, device))
        if calibration_path is not None:
            write_tensors(config, calibration_path)
        return config

    def load_calibration_config(self, calibration_config: PathLike | Mapping[str, Any]) -> None:
        """Quantize with the ranges that :meth:`export_model` returned or wrote, here or in NNI."""
        load_calibration(self, calibration_config)


def _masks_of(wrapper: Any) -> dict[str, Any]:
    """Return the masks of a layer; ones for a bias that is not pruned, None for a missing one."""
    bias = wrapper.bias_mask
    if bias is None and wrapper.bias is not None:
        bias = torch.ones_like(wrapper.bias)
    masks = {"weight": wrapper.weight_mask, "bias": bias}
    return {k: None if v is None else v.detach().cpu().clone() for k, v in masks.items()}


def _shown_weights(quantizer: Any) -> dict[str, Any]:
    """Return the weights as their layers use them, by the names of the parameters."""
    found = {}
    for wrapper in quantizer.get_modules_wrapper():
        for owner in wrapper.layer_info.owners if "weight" in wrapper.roles else ():
            path, name = owner.paths[0], owner.weight_name
            found[f"{path}.{name}" if path else name] = getattr(owner.module, name).detach().clone()
    return found
