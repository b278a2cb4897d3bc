"""Observe models from outside: the weights their layers use, and whether anything changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lilliput.core.compressor import Compressor
from lilliput.testing.expect import expect, expect_close, expect_equal, expect_zero
from lilliput.testing.lab import Array, Entry, Lab, Model, Optimizer
from lilliput.testing.parts import Same, expect_same_parts


def name_of(model: Model) -> str:
    """Return the title of a test model for messages."""
    return str(getattr(model, "name", type(model).__name__))


def entries(
    lab: Lab, compressor: Compressor, with_bias: bool = False, with_companions: bool = True
) -> Iterator[Entry]:
    """Yield the compressed weights of a model, once per owner."""
    companions = compressor.companions() if with_companions else []
    for wrapper in (*compressor.get_modules_wrapper(), *companions):
        for owner in wrapper.layer_info.owners:
            names = [(owner.weight_name, "weight"), (owner.bias_name, "bias")]
            for name, role in names if with_bias else names[:1]:
                if name is not None:
                    yield Entry(lab, wrapper, owner, name, role)


def tensors_of(lab: Lab, compressor: Compressor) -> dict[str, Array]:
    """Return copies of all tensors that the wrappers store: masks, scales and similar."""
    return {
        f"{wrapper.name}.{key}": lab.read(value)
        for wrapper in compressor._every_wrapper()
        for key, value in wrapper.tensors().items()
    }


def expect_same_tensors(lab: Lab, actual: Compressor, expected: Compressor, when: str) -> None:
    """Expect two compressors to have the same masks and scales."""
    received, wanted = tensors_of(lab, actual), tensors_of(lab, expected)
    differing = sorted(received.keys() ^ wanted.keys())
    expect(not differing, f"{when}, only one of two compressors holds {differing}.")
    for key, value in wanted.items():
        expect_equal(received[key], value, f"{when}, {key} of two compressors")


def expect_finite(array: Array, what: str) -> None:
    """Expect finite numbers."""
    expect(np.isfinite(array.astype(np.float64)).all(), f"{what} are not finite.")


def expect_gradient(gradient: Array | None, what: str) -> None:
    """Expect a gradient that is finite and not all zero."""
    if gradient is None:
        expect(False, f"{what} gets no gradient; is it detached on the way?")
    else:
        is_finite = np.isfinite(gradient.astype(np.float64)).all()
        expect(is_finite, f"{what} has a gradient that is not finite.")
        expect(gradient.any(), f"{what} has a gradient of zeros only.")


def quantizes_activations(compressor: Compressor) -> bool:
    """Whether layers change their inputs or outputs, so that no plain model equals this one."""
    roles = {role for w in compressor.get_modules_wrapper() for role in w.roles}
    return not roles.isdisjoint({"input", "output"})


def change_in_place(lab: Lab, compressor: Compressor) -> None:
    """Prune a few more weights, or change them if there are no masks."""
    for entry in entries(lab, compressor):
        if entry.mask is None:
            lab.write(entry.weight, entry.raw * -1.25 + 0.01)
        else:
            mask = entry.mask.copy()
            mask.reshape(-1)[::3] = 0
            entry.wrapper.set_attribute("weight_mask", lab.tensor(mask))


class Anatomy:
    """The parts of a plain model, for later comparison.

    Parameters
    ----------
    lab : Lab
        The lab of the model's framework.
    model : model
        The model; its weights are copied, the rest is compared by identity.
    optimizer : optimizer, optional
        Its class, attributes, hooks and variables are included.
    """

    def __init__(self, lab: Lab, model: Model, optimizer: Optimizer = None) -> None:
        self.lab, self.model, self.optimizer = lab, model, optimizer
        self.weights = lab.weights(model)
        self.values = self.read()
        self.parts = self._parts()

    def read(self) -> dict[str, Array]:
        """Return the current weights of the plain model."""
        return {key: self.lab.read(weight) for key, weight in self.weights.items()}

    def write(self, values: dict[str, Array]) -> None:
        """Overwrite the weights of the plain model."""
        for key, value in values.items():
            self.lab.write(self.weights[key], value)

    def expect_same(self, when: str, values: bool = True, hooks: bool = True) -> None:
        """Expect the model to have the very same parts, with the same values."""
        now, then = (
            {what: part for what, part in parts.items() if hooks or "_hooks" not in what}
            for parts in (self._parts(), self.parts)
        )
        expect_same_parts(now, then, when)
        if values:
            self.expect_values(self.values, when)

    def expect_values(self, values: dict[str, Array], when: str) -> None:
        """Expect the weights of the plain model to have exactly these values."""
        for key, value in self.read().items():
            expect_equal(value, values[key], f"{when}, {key}")

    def twin(self, *compressors: Compressor) -> Model:
        """Return a plain model with the weights that the compressed layers expose."""
        every = (e for each in compressors for e in entries(self.lab, each, with_bias=True))
        seen = {id(e.weight): e.seen for e in every}
        twin = self.lab.like(self.model)
        for key, weight in self.lab.weights(twin).items():
            mine = self.weights[key]
            value = seen.get(id(mine))
            self.lab.write(weight, self.lab.read(mine) if value is None else value)
        return twin

    def expect_like_twin(self, compressor: Compressor, when: str, dtype: str | None = None) -> None:
        """Expect the model to compute the same as a plain one with the weights its layers expose."""
        if quantizes_activations(compressor):
            return
        twin = self.twin(compressor)
        for is_training in (False, True):
            what = f"{when}, outputs of {name_of(self.model)} (training={is_training}) against a "
            what += "plain model with the compressed weights"
            expected = self.lab.outputs(twin, is_training)
            expect_close(self.lab.outputs(self.model, is_training), expected, what, dtype)

    def _parts(self) -> dict[str, Any]:
        things, facts = self.lab.parts(self.model, self.optimizer)
        return {what: _identity(thing) for what, thing in things.items()} | facts


def _identity(thing: Any) -> Any:
    return [Same(x) for x in thing] if isinstance(thing, list) else Same(thing)


class Watch:
    """The zeros at the start of a pruner, and whether they are still zero."""

    def __init__(self, lab: Lab, compressor: Compressor) -> None:
        self.lab, self.compressor = lab, compressor
        self.pruned = {e.label: e.pruned for e in entries(lab, compressor)}
        self.before = {e.label: e.raw for e in entries(lab, compressor)}

    def expect_zeros(self, when: str) -> None:
        """Expect zeros in the raw weight as well: nothing is only hidden behind a mask."""
        for entry in entries(self.lab, self.compressor):
            where = self.pruned[entry.label]
            if entry.mask is not None:
                where = where | (entry.mask == 0)  # more may have been pruned since
            expect_zero(entry.seen[where], f"{when}, pruned weights of {entry.label}")
            expect_zero(entry.raw[where], f"{when}, raw pruned weights of {entry.label}")

    def expect_training(self, when: str) -> None:
        """Expect the kept weights to have moved."""
        for entry in entries(self.lab, self.compressor):
            kept = ~self.pruned[entry.label]
            is_moving = (entry.raw != self.before[entry.label])[kept].any()
            expect(is_moving or not kept.any(), f"{when}, {entry.label}: no kept weight trains.")

    def expect_no_gradient(self, model: Model, when: str) -> None:
        """Expect no gradient where a weight is pruned."""
        found = self.lab.gradients(model)
        for entry in entries(self.lab, self.compressor):
            gradient = found.get(id(entry.weight))
            if gradient is not None:
                where = self.pruned[entry.label]
                expect_zero(gradient[where], f"{when}, gradient of pruned {entry.label}")
