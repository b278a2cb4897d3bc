"""A model's layers as data: their parameters, costs, and the distribution of their weights.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> taken = snapshot(model, torch.zeros(16, 4))
>>> [(layer.name, layer.parameters, layer.macs) for layer in taken.layers]
[('0', 40, 32), ('2', 18, 16)]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lilliput.config.layer import QuantType
from lilliput.errors import LilliputError
from lilliput.frameworks import backend_of
from lilliput.frameworks.work import Work
from lilliput.frameworks.wrapping import marking, step_aside
from lilliput.quantization.bnn import BNNQuantizer
from lilliput.quantization.grids import bits_of

BINS = 64
Array = np.ndarray[Any, Any]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WeightHistogram(_Data):
    """How many nonzero entries of a weight are in each of equal bins."""

    low: float
    high: float
    counts: list[int]


class LayerSnapshot(_Data):
    """One layer: a module with its own parameters, or one that multiplies."""

    name: str
    type: str
    shape: list[int] = Field(description="Shape of its largest parameter; empty if it has none.")
    parameters: int
    nonzeros: int = Field(description="Parameters that no mask removes and that are not zero.")
    macs: int | None = Field(None, description="Multiply-accumulates for one example, if known.")
    bits: int | None = Field(None, description="Bits of the weight; None in floating point.")
    ms: float | None = Field(None, description="Milliseconds of one call, excluding nested layers.")
    zeros: float = Field(
        0.0, description="Fraction of zeros in the weight that the layer computes with."
    )
    histogram: WeightHistogram | None = None


class Snapshot(_Data):
    """The layers of a model at one moment, in the model's order.

    The numbers of all layers add up to those of the model. Parameters that several layers share
    count in the first of them.
    """

    framework: str
    batch: int | None = Field(None, description="Examples in the inputs that it was run with.")
    layers: list[LayerSnapshot]

    @property
    def parameters(self) -> int:
        """The number of trained values in the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def nonzeros(self) -> int:
        """The number of nonzero ones."""
        return sum(layer.nonzeros for layer in self.layers)

    @property
    def macs(self) -> int | None:
        """Multiplications for one example, None if it was not run."""
        if self.batch is None:
            return None
        return sum(layer.macs or 0 for layer in self.layers)


def snapshot(model: Any, example_inputs: Any = None, *, timing: bool = False) -> Snapshot:
    """Return the parameters and costs of a model's layers. The model is not changed.

    Masks count as zeros, whether the weights behind them are zero or not. Histograms and ``zeros`` are of
    the weights that the model uses, masked and quantized.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        Plain, or with compressors attached.
    example_inputs : optional
        Inputs of the model: a tensor, a tuple of arguments, a dict of named ones. Needed to count
        multiplications (except for Keras models of known input sizes).
    timing : bool
        Also run it a few times to measure the time of each layer (torch only).
    """
    backend = backend_of(model)
    reader: Any = import_module(f"lilliput.frameworks.{backend.name}.snapshot")
    rows = _rows(backend.parameters(model), reader)
    batch, works = reader.watch(model, example_inputs, timing)
    layers = []
    with reader.evaluating(model):
        for key, row in rows.items():
            layers.append(_layer(row, reader, works.pop(key, None), batch))
    order = {path: i for i, path in enumerate(reader.paths(model))}
    layers += [_inner(work, batch) for work in works.values() if work.macs]
    layers.sort(key=lambda layer: order.get(layer.name, len(order)))
    return Snapshot(framework=backend.name, batch=batch, layers=layers)


@dataclass
class _Row:
    """A module and the names of its parameters."""

    name: str
    type: str
    module: Any
    attributes: list[str] = field(default_factory=list)


def _rows(parameters: dict[str, Any], reader: Any) -> dict[int, _Row]:
    """Return the modules with parameters, each parameter under the first module that has it."""
    rows: dict[int, _Row] = {}
    for info in {id(x): x for x in parameters.values()}.values():
        owner = info.owners[0]
        row = rows.setdefault(
            id(owner.module),
            _Row(reader.name_of(owner), reader.type_of(owner, info.type), owner.module),
        )
        row.attributes.append(owner.weight_name)
    return rows


def _layer(row: _Row, reader: Any, work: Work | None, batch: int | None) -> LayerSnapshot:
    quantizers = {reader.quantizer_of(row.module, name) for name in row.attributes} - {None}
    with marking(step_aside, quantizers):  # masks alone
        masked = {name: reader.value(row.module, name) for name in row.attributes}
    weight = max(masked, key=lambda name: (masked[name].ndim, masked[name].size))
    wrapper = reader.quantizer_of(row.module, weight)
    computed = masked[weight] if wrapper is None else reader.value(row.module, weight)
    return LayerSnapshot(
        name=row.name,
        type=row.type,
        shape=list(masked[weight].shape),
        parameters=sum(x.size for x in masked.values()),
        nonzeros=sum(int(np.count_nonzero(x)) for x in masked.values()),
        macs=None if batch is None else _per_example(work.macs if work else 0, batch),
        bits=None if wrapper is None else _bits(wrapper),
        ms=_milliseconds(work),
        zeros=float(f"{1 - np.count_nonzero(computed) / max(computed.size, 1):.4g}"),
        histogram=weight_histogram(computed),
    )


def _inner(work: Work, batch: int | None) -> LayerSnapshot:
    """Return a module without parameters that multiplies, such as attention."""
    macs = None if batch is None else _per_example(work.macs, batch)
    return LayerSnapshot(
        name=work.path,
        type=work.type,
        shape=[],
        parameters=0,
        nonzeros=0,
        macs=macs,
        ms=_milliseconds(work),
    )


def weight_histogram(array: Array, bins: int = BINS) -> WeightHistogram | None:
    """Return the distribution of nonzero entries, or None if there are none.

    Examples
    --------
    >>> weight_histogram(np.array([0.0, 0.0, 1.0, 2.0]), bins=2).counts
    [1, 1]
    """
    values = array[(array != 0) & np.isfinite(array)]
    if not values.size:
        return None
    counts, edges = np.histogram(values, bins)
    return WeightHistogram(low=float(edges[0]), high=float(edges[-1]), counts=counts.tolist())


def _per_example(macs: int, batch: int) -> int:
    return -(-macs // max(batch, 1))


def _milliseconds(work: Work | None) -> float | None:
    if work is None or not work.seconds:
        return None
    return float(f"{1e3 * float(np.median(work.seconds)):.4g}")


def _bits(wrapper: Any) -> int | None:
    if isinstance(wrapper.compressor, BNNQuantizer):  # its grid of -1, 0 and 1 would need two
        return 1
    try:
        qparams = wrapper.compressor.qparams(wrapper, QuantType.WEIGHT)
    except LilliputError:  # not calibrated yet
        qparams = None
    if qparams is not None and qparams.groups is not None:
        qparams = qparams.groups.qparams
    return bits_of(wrapper.config, "weight") if qparams is None else int(qparams.grid.bits)
