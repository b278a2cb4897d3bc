"""Shrink a masked Keras model, and verify that the result is the same function."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np

from lilliput.errors import (
    ConfigError,
    LilliputError,
    NothingToCutError,
    StageError,
    UnsupportedModelError,
)
from lilliput.frameworks.keras.backend import create, strip
from lilliput.frameworks.keras.build import Builder, take_over
from lilliput.frameworks.keras.dead import zeros_in
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.kernels import KernelError, kernel_notes
from lilliput.frameworks.keras.lowering.table import kind_of
from lilliput.frameworks.keras.mask_files import Masks, read_masks
from lilliput.frameworks.keras.narrow import kept_of, narrow_of, set_narrow, unseen_by_norms
from lilliput.frameworks.keras.reader import graph_of
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.sidecar import sidecar_of
from lilliput.frameworks.keras.tensors import Tensors, shapes_of
from lilliput.frameworks.keras.verify import (
    answers,
    disturbed,
    double_precision,
    make_inputs,
    relative_error,
    rounding_of,
)
from lilliput.frameworks.shrinking import Options, Shrunk
from lilliput.graph.analysis import Analysis
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import Array, balance, cut_array, find_cuts
from lilliput.graph.dead import Zeros, find_dead, one_left
from lilliput.graph.labels import Flags, Indices
from lilliput.graph.norms import find_norms
from lilliput.graph.plan import Plan
from lilliput.graph.walk import Value

log = logging.getLogger("lilliput")


# The first call compiles, which takes seconds.
RUNS_AT_ONCE = False


def shrink(model: Any, example_inputs: Any, options: Options) -> Shrunk:
    """Cut masked channels out of a model; see :func:`lilliput.speedup.shrink.speedup`.

    A smaller model is built from new layers with the same names. To change the given model in place,
    everything of the new one is moved into it.
    """
    if options.optimizer is not None:
        raise ConfigError(
            "optimizer: a Keras optimizer is built for the variables it trains, and speedup creates new "
            "ones; omit it, and compile the shrunk model with a new optimizer."
        )
    _check_model(model)
    sync(model)
    work = _Work(model, example_inputs, options.masks)
    if options.extend_masks:
        work.extend()
    removed = work.find_removed()
    shrunk, error = work.shrink(removed)
    units = {g.name: removed[g.roots] for g in work.groups}
    count, macs = work.groups.count_parameters, work.groups.count_macs
    source = shapes_of(work.read.tensors)
    before = model
    if options.inplace:
        create().widen_norms(
            model
        )  # first: what they computed is kept, so there is nothing to warn of
        strip(model)
        shrunk, before = take_over(model, shrunk)
    return Shrunk(
        model=shrunk,
        before=before,
        inputs=work.inputs[0],
        plan=Plan(work.cuts, {}),
        error=error,
        parameters=(count(), count(units)),
        macs=(macs(), macs(units)),
        removed={name: (int(x.sum()), len(x)) for name, x in units.items() if x.any()},
        remembered={},
        notes=tuple(dict.fromkeys(work.notes)),
        source=source,
    )


def zeros_of(model: Any) -> Zeros:
    """Return which slices of a model's trained variables are zero, masks applied."""
    sync(model)
    tensors = Tensors(model)
    return zeros_in(tensors.masks(), tensors)


def _check_model(model: Any) -> None:
    """Raise if a model cannot be shrunk in its current form."""
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a keras.Model."
        )
    if function_of(model) is None:
        state = "a subclassed model" if model.built else "not built"
        raise UnsupportedModelError(
            f"{type(model).__name__} is {state}: Keras has no graph of it that could be rebuilt with smaller "
            "layers. Build it from keras.Input and layers, keras.Model(inputs, outputs), or as a built "
            "keras.Sequential; otherwise it can only be masked."
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
                    f"layer {wrapper.name!r} has {type(wrapper.compressor).__name__} attached; shrink first "
                    "and quantize the smaller model."
                )


def _is_watched(model: Any) -> bool:
    sidecars = (sidecar_of(layer) for layer in model._flatten_layers())
    return any(sidecar is not None and sidecar.collectors for sidecar in sidecars)


class _Work:
    """One shrinking: the model and its analysis."""

    def __init__(self, model: Any, example_inputs: Any, masks: Masks | None) -> None:
        self.model, self.notes = model, list[str]()
        self.groups: Any = find_groups(graph_of(model, example_inputs))
        self.analysis = self.groups.analysis
        self.read = self.analysis.graph.source
        tensors = self.read.tensors
        self.masks = tensors.masks() if masks is None else read_masks(masks, tensors)
        # The channels that norms of the masked model use, if not all.
        layers = layers_by_path(model)
        norms = {norm.path for norm in find_norms(self.analysis)} if masks is None else ()
        self.kept = {path: found for path in norms if (found := narrow_of(layers[path]))}
        # Whether the model itself uses these masks, and nothing counts its calls.
        self.is_live = masks is None and not _is_watched(model)
        self.inputs = make_inputs(model, example_inputs)
        if self.groups.unreached:
            self.notes.append(
                f"{', '.join(self.groups.unreached[:4])}"
                f"{' …' if len(self.groups.unreached) > 4 else ''} belong to layers that are never called"
            )

    def extend(self) -> None:
        """Extend the masks of channels whose filters are masked."""
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
                "masks covered only filters and were extended; this changes the outputs by up to "
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
                f"the channels in {', '.join(sorted(rigid))} are kept: it is a subclassed model, which "
                "cannot be rebuilt with other sizes"
            )
        removed &= unseen_by_norms(self.analysis, self.kept)
        removed = balance(self.analysis, removed)
        self.cuts = tuple(find_cuts(self.analysis, removed))
        if not self.cuts:
            raise NothingToCutError(
                "there is nothing to cut: no channel is zero in all the variables that produce, scale or "
                "read it. Prune with L1NormPruner or another structured pruner (masks then cover whole "
                "groups) and a sparsity of at least one channel, or allow extend_masks=True; a model that "
                "was shrunk already has nothing left to cut."
            )
        self._note_left()
        return removed

    def _zeros(self) -> Zeros:
        return zeros_in(self.masks, self.read.tensors)

    def _note_left(self) -> None:
        """Add a note that zeros which are not cut out are no longer enforced."""
        left = []
        for name, mask in self.masks.items():
            kept = cut_array(mask, (cut for cut in self.cuts if cut.tensor == name))
            left += [] if kept.all() else [name]
        if left:
            more = " …" if len(left) > 4 else ""
            self.notes.append(
                f"the zeros that stay in {', '.join(left[:4])}{more} are no longer enforced in training"
            )

    def shrink(self, removed: Flags) -> tuple[Any, float]:
        """Return the new model and its error, after verifying it."""
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
        """Return the error of copies, in double precision if possible, and its tolerance."""
        try:
            with double_precision():
                error = self._error(removed, arrays, "float64")
            return error, 1e-5 if self._has_casts() else 1e-10
        except Exception as failure:  # it requires its own precision
            if isinstance(failure, LilliputError) and not isinstance(failure, KernelError):
                raise
            log.debug("speedup: no double precision: %r", failure)
            return self._error(removed, arrays, "float32"), 1e-5

    def _error(self, removed: Flags, arrays: dict[int, Array], dtype: str) -> float:
        """Compare with the current weights, and with others: a head of zeros would hide any error."""
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
        """Whether a part of the model may compute in its own precision."""
        backend = keras.backend.backend()
        if backend == "torch":  # Keras multiplies matrices in single precision there
            return True
        kinds = {kind_of(node.operation) for node in self.read.calls.nodes}
        if backend == "jax" and kinds & {"LayerNormalization", "GroupNormalization"}:
            return True  # Keras uses single precision for these
        return "Cast" in kinds or bool(self.analysis.walk.unknown)

    def _mask(self, name: str) -> Flags:
        """Return where a variable may be nonzero: neither masked nor cut."""
        shape = tuple(self.read.tensors.variables[name].shape)
        mask = self.masks.get(name, np.ones(shape, bool))
        for cut in (x for x in self.cuts if x.tensor == name):
            mask = mask & cut.mask(shape)
        return mask

    def _arrays(self) -> dict[int, Array]:
        found: dict[int, Array] = self.read.tensors.arrays(self.masks)
        return found

    def _full(self, arrays: dict[int, Array]) -> Any:
        """Return a plain copy of the model with all its channels."""
        return self._with_norms(Builder(self.analysis, self._nothing(), ()), arrays)

    def _with_norms(self, builder: Builder, arrays: dict[int, Array]) -> Any:
        """Build a copy whose norms use the same channels as those of the masked model."""
        model, layers = builder.build(arrays), layers_by_path(self.model)
        for path, kept in self.kept.items():
            set_narrow(builder.made[id(layers[path])][1], kept, model)
        return model

    def _nothing(self) -> Flags:
        return np.zeros(self.analysis.walk.labels.count, bool)


def _touched(analysis: Analysis, paths: set[str]) -> Indices:
    """Return the classes of everything that nodes inside these nested models read and produce."""
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
            f"the shrunk model does not reproduce the outputs of the masked one: they differ by {error:.1e} "
            f"of the largest, at most {tolerance:.0e} is expected. The model is unchanged."
        )
