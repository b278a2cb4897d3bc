"""Other quantization toolkits, used as in their documentation, and how all are timed side by side.

    pip install openvino nncf torchao brevitas     # whichever is missing is skipped with a line

Post-training: a float ONNX file and calibration inputs become a quantized file. Training: a float model
becomes one whose convolutions and linear layers see fake-quantized weights and inputs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def installed(package: str) -> bool:
    """Whether a package is installed; if not, print a line."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"  {package} is not installed: skipped")
    return found


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide the progress bars, warnings and log lines of other tools."""
    logging.disable(logging.WARNING)
    hidden = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(hidden):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(hidden):
                yield
    finally:
        logging.disable(logging.NOTSET)


def side_by_side(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each run in each round; the runs alternate in random order."""
    for run in runs.values():
        for _ in range(3):  # warm up
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            start = time.process_time()
            runs[name]()
            seconds[name].append(time.process_time() - start)
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the per-round ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


# Post-training quantization of ONNX files


def quantize_static(source: Path, target: Path, batches: list[Tensor]) -> Path:
    """ONNX Runtime's own tool: u8 activations, s8 weights per channel, QDQ."""
    import onnx
    import onnxruntime.quantization as ort
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            name = onnx.load(source, load_external_data=False).graph.input[0].name
            self.feeds = iter([{name: batch.numpy()} for batch in batches])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    prepared = target.with_suffix(".prepared.onnx")
    with quietly():
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        ort.quantize_static(
            *(prepared, target, Reader()),
            quant_format=ort.QuantFormat.QDQ,
            activation_type=ort.QuantType.QUInt8,
            weight_type=ort.QuantType.QInt8,
            per_channel=True,
        )
    return target


def quantize_dynamic(source: Path, target: Path, batches: list[Tensor]) -> Path:
    """ONNX Runtime's tool for text: s8 weights per channel, dynamically quantized activations."""
    import onnxruntime.quantization as ort

    with quietly():
        ort.quantize_dynamic(source, target, weight_type=ort.QuantType.QInt8, per_channel=True)
    return target


def quantize_groups(source: Path, target: Path, batches: list[Tensor]) -> Path:
    """ONNX Runtime's tool for language models: 4-bit weights in groups of 32, with zero points."""
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as groups

    with quietly():
        quantizer = groups.MatMulNBitsQuantizer(
            onnx.load(source), block_size=32, is_symmetric=False, accuracy_level=4
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))
    return target


def nncf_quantize(source: Path, target: Path, batches: list[Tensor]) -> Path:
    """NNCF with its defaults; the suffix of the target selects ONNX Runtime or OpenVINO."""
    with quietly():
        import nncf

        is_encoder = batches[0].ndim == 3
        kind = nncf.ModelType.TRANSFORMER if is_encoder else None
        data = nncf.Dataset(batches, lambda batch: {"x": batch.numpy()})
        if target.suffix == ".onnx":
            import onnx

            onnx.save(nncf.quantize(onnx.load(source), data, model_type=kind), target)
        else:
            import openvino

            model = openvino.Core().read_model(source)
            openvino.save_model(nncf.quantize(model, data, model_type=kind), target, False)
    return target


def inductor_runs(
    model: nn.Module, example: Tensor, batches: list[Tensor]
) -> dict[str, Callable[[], Tensor]]:
    """The float model and torchao's PT2E for x86, both compiled by Inductor with frozen weights."""
    with quietly():
        import torch._inductor.config
        from torchao.quantization.pt2e import quantize_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        torch._inductor.config.freezing = True
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        exported = torch.export.export(model, (example,)).module()
        prepared = quantize_pt2e.prepare_pt2e(exported, quantizer)
        for batch in batches:
            prepared(batch)
        models = {"float": model, "torchao": quantize_pt2e.convert_pt2e(prepared)}
        runs = {}
        for name, chosen in models.items():
            compiled = torch.compile(chosen)
            # A copy, because the compiled encoder of torchao 0.18 adds its first residual to the input.
            runs[name] = torch.no_grad()(lambda compiled=compiled: compiled(example.clone()))
            runs[name]()
    return runs


# Quantization-aware training: every convolution and linear layer, weight per channel and input


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    kinds = (nn.Conv2d, nn.Linear)
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]


class AtenWeight(nn.Module):
    """int8 per channel, scaled by the largest magnitude."""

    def forward(self, weight: Tensor) -> Tensor:
        scale = weight.detach().flatten(1).abs().amax(1) / 127
        zero = torch.zeros(len(scale), dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)


class AtenInput(nn.Module):
    """uint8 per tensor; the range is a moving average of minimum and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("range", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.range.lerp_(torch.stack(x.detach().aminmax()), 0.01)
        low, high = self.range.clamp(max=0)[0], self.range.clamp(min=0)[1]
        scale = (high - low).clamp(min=1e-8) / 255
        zero = (-low / scale).round().int()
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


def attach(
    model: nn.Module, weight: Callable[[], nn.Module], inputs: Callable[[], nn.Module]
) -> nn.Module:
    """Let modules quantize the weight and the input of every layer."""
    for _, layer in layers_of(model):
        quantize = inputs()
        layer.register_forward_pre_hook(lambda _, args, quantize=quantize: (quantize(args[0]),))
        parametrize.register_parametrization(layer, "weight", weight(), unsafe=True)
    return model


def aten_qat(model: nn.Module, data: Tensor) -> nn.Module:
    return attach(model, AtenWeight, AtenInput)


def torch_ao_qat(model: nn.Module, data: Tensor) -> nn.Module:
    """FakeQuantize of torch.ao, which is deprecated but still available."""
    with quietly():
        from torch.ao import quantization as ao

        inputs = ao.FakeQuantize.with_args(
            observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
        )
        weight = ao.FakeQuantize.with_args(
            observer=ao.MovingAveragePerChannelMinMaxObserver,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
            quant_min=-128,
            quant_max=127,
        )
        return attach(model, weight, inputs)


def torchao_qat(model: nn.Module, data: Tensor) -> nn.Module:
    """PT2E for x86; it decides itself where to quantize, and folds batch norm."""
    with quietly():
        from torchao.quantization import pt2e
        from torchao.quantization.pt2e import quantize_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=True))
        exported = torch.export.export(model, (data,)).module()
        prepared = quantize_pt2e.prepare_qat_pt2e(exported, quantizer)
        return pt2e.move_exported_model_to_train(prepared)


def brevitas_qat(model: nn.Module, data: Tensor) -> nn.Module:
    """QuantConv2d and QuantLinear with learned input scales, as after their first 300 steps."""
    warnings.filterwarnings("ignore", module="brevitas")  # also while it trains
    with quietly():
        from brevitas import nn as bnn
        from brevitas.quant import Int8WeightPerChannelFloat, ShiftedUint8ActPerTensorFloat

        settings = {
            "weight_quant": Int8WeightPerChannelFloat,
            "input_quant": ShiftedUint8ActPerTensorFloat,
            "input_collect_stats_steps": 2,  # their slower first phase is not measured
        }
        for name, old in layers_of(model):
            has_bias = old.bias is not None
            if isinstance(old, nn.Linear):
                new = bnn.QuantLinear(old.in_features, old.out_features, has_bias, **settings)
            else:
                shape = {k: getattr(old, k) for k in ("stride", "padding", "dilation", "groups")}
                sizes = (old.in_channels, old.out_channels, old.kernel_size)
                new = bnn.QuantConv2d(*sizes, bias=has_bias, **shape, **settings)
            new.load_state_dict(old.state_dict(), strict=False)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, new)
    return model
