"""The effect of quantization on each tensor: error, range, clipping, bits, histograms.

>>> import torch
>>> from lilliput.torch import PTQQuantizer
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], "quant_bits": 4}])
>>> model, batches = quantizer.compress(), [torch.randn(16, 4)]
>>> quantizer.calibrate(batches)
>>> report = quantization_report(quantizer, batches)
>>> [(row.layer, row.target, row.dtype) for row in report.rows][:2]
[('0', 'weight', 'int4'), ('0', 'input', 'uint4')]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.errors import ConfigError, StageError
from lilliput.files import write_atomically
from lilliput.frameworks import backend_of
from lilliput.frameworks.exporting.grid import spread
from lilliput.frameworks.exporting.simulation import Array, to_array
from lilliput.frameworks.wrapping import marking, step_aside
from lilliput.ops.histogram import Histogram
from lilliput.ops.namespace import Tensor, namespace
from lilliput.printing import printable
from lilliput.tables import html_table

_BINS = 64


@dataclass(frozen=True)
class TensorRow:
    """One quantized tensor of one layer.

    Attributes
    ----------
    sqnr : float
        Signal-to-noise ratio of rounding, in dB.
    low, high : float
        The observed range.
    grid_low, grid_high : float or None
        The range that the grid covers (of the widest channel).
    clipped : float or None
        The share of entries outside the range of the grid.
    histogram : dict
        ``low``, ``high``, ``before`` and ``after``: counts of equal bins.
    """

    layer: str
    target: str
    dtype: str
    bits: int | None
    granularity: str
    sqnr: float
    low: float
    high: float
    grid_low: float | None
    grid_high: float | None
    clipped: float | None
    histogram: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class QuantizationReport:
    """One row per quantized tensor, and the error at the model's output.

    ``layers`` describes how the runtime executes each layer, if an export result was given.
    """

    rows: tuple[TensorRow, ...]
    output_sqnr: float
    integer_share: float | None = None
    layers: tuple[dict[str, Any], ...] = ()

    def worst(self, count: int = 5) -> list[TensorRow]:
        """Return the tensors with the largest relative error."""
        return sorted(self.rows, key=lambda row: row.sqnr)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; infinite ratios are None."""
        rows = [{k: _finite(v) for k, v in asdict(row).items()} for row in self.rows]
        return {
            "output_sqnr": _finite(self.output_sqnr),
            "integer_share": self.integer_share,
            "tensors": rows,
            "layers": list(self.layers),
        }

    def save(self, path: str | Path) -> None:
        """Write the report as JSON."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1).encode())

    def __repr__(self) -> str:
        layers = len({row.layer for row in self.rows})
        return (
            f"QuantizationReport({len(self.rows)} tensors of {layers} layers; output "
            f"{self.output_sqnr:.1f} dB)"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                row.layer,
                row.target,
                row.dtype,
                row.granularity,
                f"{row.sqnr:.1f}",
                "" if row.clipped is None else f"{row.clipped:.2%}",
                f"{row.low:.4g} to {row.high:.4g}",
            )
            for row in self.worst(len(self.rows))
        ]
        header = ("layer", "tensor", "type", "scale", "SQNR dB", "clipped", "range seen")
        notes = [f"output of the model: {self.output_sqnr:.1f} dB"]
        if self.integer_share is not None:
            notes.append(f"multiplications that run on integers: {self.integer_share:.1%}")
        return html_table(rows, header, title="tensors with the largest error first", notes=notes)

    def __str__(self) -> str:
        names = [printable(row.layer) for row in self.rows]
        width = max([5, *map(len, names)])
        head = f"{'layer':{width}}  tensor  type    scale        SQNR dB  clipped  range seen"
        lines = [head]
        for name, row in zip(names, self.rows, strict=True):
            clipped = "" if row.clipped is None else f"{row.clipped:7.2%}"
            lines.append(
                f"{name:{width}}  {row.target:6}  {row.dtype:6}  {row.granularity:11}  "
                f"{row.sqnr:7.1f}  {clipped:7}  {row.low:.4g} to {row.high:.4g}"
            )
        lines.append(f"output of the model: {self.output_sqnr:.1f} dB")
        if self.integer_share is not None:
            lines.append(f"multiplications that run on integers: {self.integer_share:.1%}")
        return "\n".join(lines)


def quantization_report(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None = None,
    result: Any = None,
) -> QuantizationReport:
    """Run batches, and return the effect of quantization on every tensor of every layer.

    Parameters
    ----------
    quantizer : Quantizer
        A quantizer that is attached to a model.
    batches : iterable
        A few batches of a data loader.
    forward : callable, optional
        ``forward(model, batch)``, as for ``calibrate``.
    result : ExportResult, optional
        Result of ``export_onnx`` or ``export_litert``; adds which layers the runtime executes on
        integers.
    """
    if not getattr(quantizer, "is_wrapped", False):
        raise StageError(
            "quantization_report() needs an attached quantizer; call compress() first."
        )
    kept = list(batches)
    if not kept:
        raise ConfigError("quantization_report() received no batches.")
    watch = _Watch(quantizer)
    error = _Error()
    model = quantizer.bound_model
    backend = backend_of(model)
    call = forward or backend.feeder(getattr(quantizer, "example_inputs", None))
    wrappers = backend.quantizers_in(model)

    def both(model: Any, batch: Any) -> None:
        with marking(step_aside, wrappers):
            plain = _first_tensor(call(model, batch), quantizer)
        with marking(watch, wrappers):
            error.add(to_array(plain), to_array(_first_tensor(call(model, batch), quantizer)))

    backend.run(model, kept, both)
    layers = () if result is None else tuple(result.to_dict()["layers"])
    share = None if result is None else result.integer_share
    return QuantizationReport(tuple(watch.rows()), error.decibel(), share, layers)


class _Error:
    """The power of a signal and of its error."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0

    def add(self, before: Array, after: Array) -> None:
        before, after = before.astype(np.float64), after.astype(np.float64)
        self.signal += float((before**2).sum())
        self.noise += float(((after - before) ** 2).sum())

    def decibel(self) -> float:
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf


class _Watch:
    """A marker that quantizes as usual and records the effect."""

    def __init__(self, quantizer: Any) -> None:
        self.quantizer = quantizer
        self.seen: dict[tuple[str, QuantType], _Seen] = {}

    def __call__(self, wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]) -> Any:
        quantized = wrapper.compressor.run(wrapper, kind, tensors)
        if wrapper.compressor is self.quantizer:
            seen = self.seen.get((wrapper.name, kind))
            if seen is None:
                seen = self.seen[wrapper.name, kind] = _Seen(wrapper, kind)
            elif kind is QuantType.WEIGHT:
                return quantized  # it is the same in every batch
            for before, after in zip(tensors, quantized, strict=True):
                seen.add(before, after)
        return quantized

    def rows(self) -> list[TensorRow]:
        order = {w.name: i for i, w in enumerate(self.quantizer.get_modules_wrapper())}
        kinds = list(QuantType)
        items = sorted(self.seen, key=lambda key: (order[key[0]], kinds.index(key[1])))
        return [self.seen[key].row() for key in items]


class _Seen:
    """The statistics of one tensor."""

    def __init__(self, wrapper: Any, kind: QuantType) -> None:
        self.wrapper, self.kind = wrapper, kind
        self.qparams = wrapper.compressor.qparams(wrapper, kind)
        self.error, self.before, self.after = _Error(), Histogram(_BINS), Histogram(_BINS)
        self.low, self.high = math.inf, -math.inf
        self.outside = self.total = 0

    def outside_of(self, values: Array) -> int:
        """Return how many values are beyond the ends of the grid."""
        grid = self.qparams.grid
        axis = None if grid.axis is None else grid.axis % values.ndim
        scale, zero = (
            spread(to_array(x), values.shape, axis, grid.group_size)
            for x in (self.qparams.scale, self.qparams.zero_point)
        )
        low, high = ((end - zero) * scale for end in (grid.low - 0.5, grid.high + 0.5))
        return int(((values < low) | (values > high)).sum())

    def add(self, before: Tensor, after: Tensor) -> None:
        """Record a tensor before and after quantization."""
        array = to_array(before).astype(np.float32)
        self.error.add(array, to_array(after).astype(np.float32))
        self.low = min(self.low, float(array.min()))
        self.high = max(self.high, float(array.max()))
        xp = namespace(before)
        for histogram, tensor in ((self.before, before), (self.after, after)):
            histogram.widen(min(self.low, histogram.low), max(self.high, histogram.high))
            histogram.add(xp.widen(xp.detach(tensor)))
        if self.qparams is not None and not self.qparams.grid.is_dynamic:
            self.outside += self.outside_of(array)
            self.total += array.size

    def row(self) -> TensorRow:
        grid = None if self.qparams is None else self.qparams.grid
        ends: tuple[float | None, float | None] = (None, None)
        is_fixed = grid is not None and not grid.is_dynamic
        if self.qparams is not None and grid is not None and is_fixed:
            scale, zero = (to_array(x) for x in (self.qparams.scale, self.qparams.zero_point))
            ends = (
                float(((grid.low - zero) * scale).min()),
                float(((grid.high - zero) * scale).max()),
            )
        histogram = {
            "low": self.before.low,
            "high": self.before.high,
            "before": self.before.counts.tolist(),
            "after": self.after.counts.tolist(),
        }
        return TensorRow(
            layer=self.wrapper.name,
            target=self.kind.value,
            dtype="" if grid is None else grid.dtype,
            bits=None if grid is None else grid.bits,
            granularity="" if grid is None else grid.granularity,
            sqnr=self.error.decibel(),
            low=self.low,
            high=self.high,
            grid_low=ends[0],
            grid_high=ends[1],
            clipped=None if not is_fixed else self.outside / max(self.total, 1),
            histogram=histogram,
        )


def _first_tensor(output: Any, quantizer: Any) -> Tensor:
    if quantizer._is_tensor(output):
        return output
    values = output.values() if isinstance(output, dict) else output
    found = next((x for x in values if quantizer._is_tensor(x)), None)
    if found is None:
        raise ConfigError("the model, or forward(model, batch), must return a tensor to compare.")
    return found


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
