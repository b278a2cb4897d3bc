"""``ModelSpeedupTensorRT``: write an ONNX file for TensorRT, instead of building an engine in Python.

NNI set the ranges of an engine by hand. TensorRT reads them from the file since version 8: quantize and
dequantize nodes around each layer, signed and without zero points.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.compat.nni.tools.calibration import in_todays_words, load_calibration
from lilliput.compat.nni.tools.filing import PathLike
from lilliput.errors import ConfigError, StageError
from lilliput.extras import require
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.torch import PTQQuantizer, QATQuantizer, export_onnx

log = logging.getLogger("lilliput")

_INTEGER = {"quant_bits": 8, "quant_scheme": "symmetric", "quant_dtype": "int"}
_HINT = (
    "trtexec --onnx=%s --int8 --fp16 --saveEngine=model.engine builds the engine from it, on the machine "
    "that will run it"
)


class CalibrateType:
    """How TensorRT determined ranges; here the quantizer's observer does."""

    LEGACY, ENTROPY, ENTROPY2, MINMAX = "legacy", "entropy", "entropy2", "minmax"


class ModelSpeedupTensorRT:
    """Write a model with its ranges as an ONNX file for TensorRT, and run that file with ONNX Runtime.

    Parameters
    ----------
    model : torch.nn.Module
        The model, plain or under a quantizer.
    input_shape : tuple of int
        Shape of its input.
    config : dict, optional
        The result of ``export_model`` of a quantizer. Layers with 8 bits are quantized, others stay in
        floating point.
    onnx_path : path
        The file to write.
    calib_data_loader : data loader or tensor, optional
        Without ``config``: data to determine the ranges, for all convolutions and linear layers.
    batchsize : int
        How many samples to run at a time.
    extra_layer_bit, extra_layer_bits, strict_datatype, calibrate_type, calibration_cache, input_names, \
output_names : optional
        Of NNI's own engine; ``trtexec`` has options for them.
    """

    def __init__(
        self,
        model: nn.Module,
        input_shape: tuple[int, ...],
        config: Mapping[str, Any] | None = None,
        onnx_path: PathLike = "default_model.onnx",
        extra_layer_bits: int = 32,
        strict_datatype: bool = True,
        calibrate_type: Any = None,
        calib_data_loader: Any = None,
        calibration_cache: PathLike = "calibration.cache",
        batchsize: int = 1,
        input_names: Any = None,
        output_names: Any = None,
        *,
        extra_layer_bit: int = 32,
    ) -> None:
        if not isinstance(input_shape, (tuple, list)) or not all(
            isinstance(n, int) for n in input_shape
        ):
            raise ConfigError(
                f"input_shape: received {input_shape!r}, expected a tuple such as (1, 3, 224, 224)."
            )
        self.model, self.config, self.onnx_path = model, config, onnx_path
        self.input_shape, self.batchsize = tuple(input_shape), batchsize
        self.calib_data_loader = calib_data_loader
        self._session: Any = None

    def compress(self) -> None:
        """Write the file, and log how to build an engine from it."""
        source = self._quantized()
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        x = torch.randn(self.input_shape, device=device)
        if source is None:
            export_onnx(self.model, self.onnx_path, x)
        else:
            export_onnx(source, self.onnx_path, x, "generic")
        log.warning(
            "ModelSpeedupTensorRT: %s is written; no engine is built here. " + _HINT + ".",
            self.onnx_path,
            self.onnx_path,
        )

    def inference(self, test_data: Tensor) -> tuple[Tensor, float]:
        """Run the file with ONNX Runtime on the CPU; return the outputs and the time in seconds."""
        if self._session is None:
            runtime = require("onnxruntime", "inference() needs pip install 'lilliput[onnx]'")
            self._session = runtime.InferenceSession(
                str(self.onnx_path), providers=["CPUExecutionProvider"]
            )
        name = self._session.get_inputs()[0].name
        outputs, start = [], time.perf_counter()
        for batch in torch.split(test_data.detach().cpu(), self.batchsize):
            outputs.append(torch.from_numpy(self._session.run(None, {name: batch.numpy()})[0]))
        return torch.cat(outputs), time.perf_counter() - start

    def export_quantized_model(self, path: PathLike) -> None:
        """Raise: an engine is built by TensorRT itself."""
        raise StageError(f"no TensorRT engine is built here: {_HINT % self.onnx_path}.")

    load_quantized_model = export_quantized_model

    def _quantized(self) -> Any:
        """Return the quantized source: the model itself, a copy under a quantizer, or None."""
        if quantizers_in(self.model):
            return self.model
        plain = copy.deepcopy(unwrapped(self.model)).eval()
        if self.config is not None:
            rules = rules_of(self.config)
            if not rules:
                return None
            quantizer: Any = QATQuantizer(plain, rules)
            quantizer.compress()
            load_calibration(quantizer, self.config)
            return quantizer
        if self.calib_data_loader is None:
            return None
        rule = {"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input"], **_INTEGER}
        quantizer = PTQQuantizer(plain, [rule])
        quantizer.compress()
        quantizer.calibrate(self._batches(), progress=False)
        return quantizer

    def _batches(self) -> Iterable[Any]:
        data = self.calib_data_loader
        return list(torch.split(data, self.batchsize)) if isinstance(data, Tensor) else data


def rules_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rules for the layers of a calibration config that have 8 bits.

    Examples
    --------
    >>> rules_of({"fc": {"weight_bits": 8}, "head": {"weight_bits": 16}})[0]["op_names"]
    ['fc']
    """
    rules = []
    for name, held in config.items():
        entry = in_todays_words(held)
        kinds = [x for x in ("weight", "input", "output") if entry.get(f"{x}_bits") == 8]
        if kinds:
            rules.append({"op_names": [name], "quant_types": kinds, **_INTEGER})
    return rules
