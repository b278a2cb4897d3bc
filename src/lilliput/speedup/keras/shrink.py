"""Shrink a masked Keras model, and prove that the result is the same function."""

from __future__ import annotations

import logging
import time
from typing import Any

import keras
import numpy as np

from lilliput.errors import (
    LilliputError,
    NothingToCutError,
    StageError,
    UnsupportedModelError,
)
from lilliput.frameworks.keras.dead import masked_in
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.instrument import sidecar_of
from lilliput.frameworks.keras.kernels import KernelError, kernel_notes
from lilliput.frameworks.keras.lowering.table import kind_of
from lilliput.frameworks.keras.narrow import kept_of, narrow_of, set_narrow, unseen_by_norms
from lilliput.frameworks.keras.reader import graph_of
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.verify import (
    answers,
    disturbed,
    double_precision,
    make_inputs,
    relative_error,
    rounding_of,
)
from lilliput.graph.analysis import Analysis
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import Array, balance, cut_array, find_cuts
from lilliput.graph.dead import Zeros, find_dead, one_left
from lilliput.graph.labels import Flags, Indices
from lilliput.graph.norms import find_norms
from lilliput.graph.walk import Value
from lilliput.speedup.keras.masks import Masks, read_masks
from lilliput.speedup.keras.rebuild import Builder
from lilliput.speedup.keras.result import SpeedupResult

log = logging.getLogger("lilliput")


def speedup(
    model: Any,
    example_inputs: Any = None,
    *,
    masks: Masks | None = None,
    extend_masks: bool = False,
) -> SpeedupResult:
    """Return a new, smaller model without the masked channels, and check that its outputs are the same.

    The model itself stays as it is, its masks included. The new model has layers of the same names and
    is a plain Keras model. It is not compiled, and the optimizer's memory of the weights is not carried
    over: compile it with a new optimizer to train on.

    Parameters
    ----------
    model : keras.Model
        A Functional or Sequential model, in which others may be nested, under a structured pruner. A
        subclassed model cannot be built again with other sizes.
    example_inputs : array or structure of arrays, optional
        What the model is called with, for the check. Needed where inputs leave sizes open; otherwise
        numbers are drawn by chance.
    masks : path, or mapping of str to array, optional
        A file written by ``export_model(mask_path=…)``, or masks by variable,
        ``{'conv1.kernel': array of 0 and 1, …}``, in place of those that pruners hold on the model.
        Needed once the pruner has left: a weight that happens to be zero is not taken for pruned.
    extend_masks : bool
        Also remove channels of which only the filters are masked. What they still gave to later layers
        (norm shifts, activations of zero) is lost: the result differs from the masked model, and is
        checked against the model with these masks completed.

    Returns
    -------
    SpeedupResult
        ``result.model`` is the shrunk model, ``print(result)`` the report.

    Examples
    --------
    >>> import keras, numpy
    >>> layers = [keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(2, name="head")]
    >>> model = keras.Sequential([keras.Input((4,)), *layers])
    >>> half = numpy.arange(8) < 4
    >>> masks = {"hidden.kernel": half[None].repeat(4, 0), "hidden.bias": half}
    >>> result = speedup(model, masks={**masks, "head.kernel": half[:, None].repeat(2, 1)})
    >>> result.model.get_layer("hidden").units, result.parameters
    (4, (58, 30))
    """
    start = time.perf_counter()
    _check_model(model)
    sync(model)
    work = _Work(model, example_inputs, masks)
    if extend_masks:
        work.extend()
    removed = work.find_removed()
    shrunk, error = work.shrink(removed)
    units = {g.name: removed[g.roots] for g in work.groups}
    return SpeedupResult(
        model=shrunk,
        cuts=work.cuts,
        error=error,
        parameters=(work.groups.count_parameters(), work.groups.count_parameters(units)),
        macs=(work.groups.count_macs(), work.groups.count_macs(units)),
        removed={name: (int(x.sum()), len(x)) for name, x in units.items() if x.any()},
        seconds=time.perf_counter() - start,
        notes=tuple(dict.fromkeys(work.notes)),
        masked=model,
        example_inputs=example_inputs,
    )


def _check_model(model: Any) -> None:
    """Raise if a model cannot be shrunk as it stands."""
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a keras.Model."
        )
    if function_of(model) is None:
        state = "a subclassed model" if model.built else "not built"
        raise UnsupportedModelError(
            f"{type(model).__name__} is {state}: Keras knows no graph of it that could be built again "
            "with smaller layers. Make it of keras.Input and layers, keras.Model(inputs, outputs), or as a "
            "built keras.Sequential; as it is, masks are as far as it goes."
        )
    for layer in model._flatten_layers():
        sidecar = sidecar_of(layer)
        for wrapper in [] if sidecar is None else sidecar.wrappers:
            if wrapper.keeps_raw():
                raise StageError(
                    f"layer {wrapper.name!r}: {type(wrapper.compressor).__name__} still computes its "
                    "weight, which its variable does not hold; strip() the pruner first."
                )
            if wrapper.order == 1:
                raise StageError(
                    f"layer {wrapper.name!r} is under {type(wrapper.compressor).__name__}; shrink first "
                    "and quantize the smaller model."
                )


def _is_watched(model: Any) -> bool:
    sidecars = (sidecar_of(layer) for layer in model._flatten_layers())
    return any(sidecar is not None and sidecar.collectors for sidecar in sidecars)


class _Work:
    """One shrinking: what was found, and the model it was found in."""

    def __init__(self, model: Any, example_inputs: Any, masks: Masks | None) -> None:
        self.model, self.notes = model, list[str]()
        self.groups: Any = find_groups(graph_of(model, example_inputs))
        self.analysis = self.groups.analysis
        self.read = self.analysis.graph.source
        tensors = self.read.tensors
        self.masks = tensors.masks() if masks is None else read_masks(masks, tensors)
        # What the norms of the masked model see, where it is not everything.
        layers = layers_by_path(model)
        norms = {norm.path for norm in find_norms(self.analysis)} if masks is None else ()
        self.kept = {path: found for path in norms if (found := narrow_of(layers[path]))}
        # Whether the model itself computes with these masks, and nobody counts its calls.
        self.is_live = masks is None and not _is_watched(model)
        self.inputs = make_inputs(model, example_inputs)
        if self.groups.unreached:
            self.notes.append(
                f"{', '.join(self.groups.unreached[:4])}"
                f"{' …' if len(self.groups.unreached) > 4 else ''} are of layers that are never called"
            )

    def extend(self) -> None:
        """Complete the masks of channels whose filters are masked."""
        dead = find_dead(self.groups, self._zeros(), only_outputs=True)
        flags = balance(self.analysis, self.groups.flags(one_left(dead)))
        before = answers(self._full(self._arrays()), self.inputs)
        variables = self.read.tensors.variables
        for cut in find_cuts(self.analysis, flags):
            kept = cut.mask(tuple(variables[cut.tensor].shape))
            self.masks[cut.tensor] = self.masks.get(cut.tensor, True) & kept
        for norm in find_norms(self.analysis):
            self.kept[norm.path] = kept_of(self.analysis, norm, flags)
        self.is_live = False
        change = relative_error(before, answers(self._full(self._arrays()), self.inputs))
        if change > rounding_of(self.model):
            self.notes.append(
                "masks covered only filters and were completed; this changes the outputs by up to "
                f"{change:.1%} of the largest"
            )
            log.warning("speedup: %s.", self.notes[-1])

    def find_removed(self) -> Flags:
        """Return the classes that masks remove wherever they appear, and that can be cut out."""
        removed: Flags = self.groups.flags(one_left(find_dead(self.groups, self._zeros())))
        rigid = {c.path for c in self.read.calls.calls if function_of(c.operation) is None}
        if rigid:
            removed[_touched(self.analysis, rigid)] = False
            self.notes.append(
                f"the channels in {', '.join(sorted(rigid))} stay: it is a subclassed model, which cannot "
                "be built again with other sizes"
            )
        removed &= unseen_by_norms(self.analysis, self.kept)
        removed = balance(self.analysis, removed)
        self.cuts = tuple(find_cuts(self.analysis, removed))
        if not self.cuts:
            raise NothingToCutError(
                "there is nothing to cut: no channel is masked in all the variables that make, scale or "
                "read it. Prune with L1NormPruner or another structured pruner (masks then cover whole "
                "groups) and a sparsity of at least one channel, or allow extend_masks=True. A pruner that "
                "has left the model took its masks along: give masks=."
            )
        self._note_left()
        return removed

    def _zeros(self) -> Zeros:
        return masked_in(self.masks, self.read.tensors.trained)

    def _note_left(self) -> None:
        """Say that zeros which are not cut out are no longer held."""
        left = []
        for name, mask in self.masks.items():
            kept = cut_array(mask, (cut for cut in self.cuts if cut.tensor == name))
            left += [] if kept.all() else [name]
        if left:
            more = " …" if len(left) > 4 else ""
            self.notes.append(
                f"the zeros that stay in {', '.join(left[:4])}{more} are no longer held in training"
            )

    def shrink(self, removed: Flags) -> tuple[Any, float]:
        """Return the new model and its error, once it has passed the check."""
        arrays = self._arrays()
        error, tolerance = self._compare(removed, arrays)
        _check(error, tolerance)
        builder = Builder(self.analysis, removed, self.cuts)
        shrunk = builder.build(arrays)
        self.notes += [*builder.notes, *kernel_notes(shrunk)]
        masked = self.model if self.is_live else self._full(arrays)
        rounded = relative_error(answers(masked, self.inputs), answers(shrunk, self.inputs))
        _check(rounded, rounding_of(self.model))
        return shrunk, error

    def _compare(self, removed: Flags, arrays: dict[int, Array]) -> tuple[float, float]:
        """Return the error of copies in double precision if possible, and what it may be."""
        try:
            with double_precision():
                error = self._error(removed, arrays, "float64")
            return error, 1e-5 if self._has_casts() else 1e-10
        except Exception as failure:  # it insists on its own precision
            if isinstance(failure, LilliputError) and not isinstance(failure, KernelError):
                raise
            log.debug("speedup: no double precision: %r", failure)
            return self._error(removed, arrays, "float32"), 1e-5

    def _error(self, removed: Flags, arrays: dict[int, Array], dtype: str) -> float:
        """Compare with the weights as they are, and with others: a head of zeros would hide anything."""
        tensors = self.read.tensors
        masks = {id(tensors.variables[name]): self._mask(name) for name in sorted(tensors.trained)}
        full = Builder(self.analysis, self._nothing(), (), dtype)
        small = Builder(self.analysis, removed, self.cuts, dtype)
        error = 0.0
        for values in (arrays, disturbed(arrays, masks)):
            expected = answers(self._with_norms(full, values), self.inputs)
            error = max(error, relative_error(expected, answers(small.build(values), self.inputs)))
        return error

    def _has_casts(self) -> bool:
        """Whether some part of the model may compute in a precision of its own."""
        backend = keras.backend.backend()
        if backend == "torch":  # there Keras multiplies matrices in single precision
            return True
        kinds = {kind_of(node.operation) for node in self.read.calls.nodes}
        if backend == "jax" and kinds & {"LayerNormalization", "GroupNormalization"}:
            return True  # there Keras takes these in single precision
        return "Cast" in kinds or bool(self.analysis.walk.unknown)

    def _mask(self, name: str) -> Flags:
        shape = tuple(self.read.tensors.variables[name].shape)
        return self.masks.get(name, np.ones(shape, bool))

    def _arrays(self) -> dict[int, Array]:
        found: dict[int, Array] = self.read.tensors.arrays(self.masks)
        return found

    def _full(self, arrays: dict[int, Array]) -> Any:
        """Return a plain copy of the model, all its channels in place."""
        return self._with_norms(Builder(self.analysis, self._nothing(), ()), arrays)

    def _with_norms(self, builder: Builder, arrays: dict[int, Array]) -> Any:
        """Build a copy whose norms see what those of the masked model see."""
        model, layers = builder.build(arrays), layers_by_path(self.model)
        for path, kept in self.kept.items():
            set_narrow(builder.made[id(layers[path])][1], kept, model)
        return model

    def _nothing(self) -> Flags:
        return np.zeros(self.analysis.walk.labels.count, bool)


def _touched(analysis: Analysis, paths: set[str]) -> Indices:
    """Return the classes of everything that nodes inside these nested models read and make."""
    walk, read = analysis.walk, analysis.graph.source
    found: list[Value] = []
    for node in read.calls.nodes:
        if paths.intersection(node.scopes):
            found += [walk.value(read.values[x]) for x in (*node.inputs, *node.outputs)]
    for name, value in analysis.axes.items():
        if any(name.startswith(f"{path}/") for path in paths):
            found.append(value)
    classes = [x for value in found for axis in value.axes for x in analysis.classes(axis)]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *classes]))


def _check(error: float, tolerance: float) -> None:
    if not error <= tolerance:
        raise UnsupportedModelError(
            f"the shrunk model does not give the outputs of the masked one: they differ by {error:.1e} "
            f"of the largest, at most {tolerance:.0e} is expected. The model is as it was."
        )
