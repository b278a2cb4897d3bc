"""A quantizer with scales that are known beforehand, and readers for the files it gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper

from lilliput.config.layer import QuantType
from lilliput.core.quantizer import Quantizer
from lilliput.export import export_onnx
from lilliput.ops.qparams import Grid, QParams, fit

ALL = ["weight", "input", "output"]


def rule(types=ALL, weight=7, activation=8, **where):
    """Return a rule; 7-bit weights, so that no CPU saturates."""
    bits = {name: weight if name == "weight" else activation for name in types}
    return {"quant_types": list(types), "quant_bits": bits, **(where or {"op_types": ["default"]})}


class FixedQuantizer(Quantizer):
    """Ranges from one batch; scales that are powers of two where sums are to be exact."""

    keeps_zero = True
    granularity = "per_channel"
    group_size = 32
    is_signed = False
    powers = False
    learning = False

    def grid(self, wrapper, kind):
        bits = wrapper.config["quant_bits"]
        bits = bits[kind] if isinstance(bits, dict) else bits
        if kind != "weight":
            return Grid(bits, self.is_signed, self.is_signed)
        axis = {"per_channel": wrapper.layer_info.out_axis, "per_group": 1}.get(self.granularity)
        size = self.group_size if self.granularity == "per_group" else None
        return Grid(bits, True, True, True, axis, size)

    def qparams(self, wrapper, quant_type):
        grid = self.grid(wrapper, quant_type.value)
        if quant_type is QuantType.WEIGHT:
            low, high = self._weight_range(wrapper.weight.detach(), grid)
        else:
            low, high = (torch.tensor(x) for x in self.ranges[wrapper.name, quant_type.value])
        scale, zero = fit(low, high, grid)
        if self.powers:
            scale = scale.log2().ceil().exp2()
            zero = zero if grid.is_symmetric else (-low / scale).round().clamp(grid.low, grid.high)
        return QParams(scale, zero, grid)

    def _weight_range(self, weight, grid):
        if grid.group_size:
            missing = -weight.shape[1] % grid.group_size
            padded = torch.nn.functional.pad(weight, (0, missing))
            groups = padded.view(len(weight), -1, grid.group_size)
            return groups.amin(2), groups.amax(2)
        axes = tuple(i for i in range(weight.ndim) if i != grid.axis)
        return weight.amin(axes), weight.amax(axes)

    def quantize_weight(self, weight, wrapper, **kwargs):
        qparams = self.qparams(wrapper, QuantType.WEIGHT)
        return qparams.to_reals(qparams.to_integers(weight))

    def quantize_input(self, tensor, wrapper, **kwargs):
        return self._activation(tensor, wrapper, QuantType.INPUT)

    def quantize_output(self, tensor, wrapper, **kwargs):
        return self._activation(tensor, wrapper, QuantType.OUTPUT)

    def _activation(self, tensor, wrapper, quant_type):
        if self.learning:
            low, high = self.ranges.get((wrapper.name, quant_type.value), (0.0, 0.0))
            seen = min(low, float(tensor.min())), max(high, float(tensor.max()))
            self.ranges[wrapper.name, quant_type.value] = seen
            return tensor
        qparams = self.qparams(wrapper, quant_type)
        return qparams.to_reals(qparams.to_integers(tensor))

    def calibrate(self, *args, **kwargs):
        self.ranges = {}
        self.learning = True
        modes = [(module, module.training) for module in self.bound_model.modules()]
        with torch.no_grad():
            self.bound_model.eval()(*args, **kwargs)
        for module, mode in modes:
            module.training = mode
        self.learning = False
        return self


def quantized(model, x, rules=None, **settings):
    """Return a calibrated quantizer at work on a model."""
    quantizer = FixedQuantizer(model, rules or [rule()])
    for name, value in settings.items():
        setattr(quantizer, name, value)
    quantizer.compress()
    arguments = x if isinstance(x, tuple) else () if isinstance(x, dict) else (x,)
    return quantizer.calibrate(*arguments, **(x if isinstance(x, dict) else {}))


def export(model, tmp_path, x, target="onnxruntime", **settings):
    """Return the result of an export and the file's graph."""
    path = tmp_path / "model.onnx"
    result = export_onnx(model, path, x, target, **settings)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    return result, proto.graph


def constants(graph):
    """Return the constants of a graph: their types and their values."""
    found = {}
    for tensor in graph.initializer:
        kind = TensorProto.DataType.Name(tensor.data_type)
        array = numpy_helper.to_array(tensor)
        wide = array.astype(np.int32) if "INT4" in kind else array
        found[tensor.name] = (kind, wide)
    return found


def operators(graph):
    return [node.op_type for node in graph.node]


def execute(path, feeds, optimized=True):
    """Return a file's outputs in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if not isinstance(feeds, dict):
        feeds = {session.get_inputs()[0].name: feeds}
    return session.run(None, {name: np.asarray(x) for name, x in feeds.items()})
