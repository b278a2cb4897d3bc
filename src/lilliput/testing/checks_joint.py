"""Checks for pruners, quantizers and distillers on one model: each behaves as it does alone.

References are computed here in NumPy: the grid of a weight, and the distances to the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.distillation.distiller import Distiller
from lilliput.errors import LilliputError, StageError
from lilliput.quantization.ptq import PTQQuantizer
from lilliput.testing.expect import (
    expect,
    expect_close,
    expect_equal,
    expect_zero,
)
from lilliput.testing.lab import Array, Entry, Lab
from lilliput.testing.observe import (
    Anatomy,
    Watch,
    entries,
    expect_gradient,
    quantizes_activations,
)
from lilliput.testing.subject import Subject

_BITS = 4  # few enough that a weight off its grid is far from it
_TEMPERATURE, _WEIGHTS = 3.0, {"(model)": 0.5, "features": 2.0}
_STEPS = 2


def _rules(first: str, last: str, *others: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a comparison for each loss: of the outputs, of the outputs as features, and of early layers."""
    return [
        {"temperature": _TEMPERATURE, "weight": _WEIGHTS["(model)"]},
        {"op_names": [first], "loss": "cosine"},
        {"op_names": [last], "loss": "mse", "weight": _WEIGHTS["features"]},
        *others,
    ]


_RULES = {
    "cnn": _rules("conv1", "fc", {"op_names": ["conv2"], "loss": "attention"}),
    "mlp": _rules("hidden", "out"),
}


def check_together(
    pruner: Subject, quantizer: Subject, kinds: Sequence[str] = ("cnn", "mlp")
) -> str:
    """Check a pruner and a quantizer together on one model that is distilled from a teacher.

    A small network is pruned, quantized and trained for two steps with a distiller that compares it with
    the original, by each of its losses. Masked weights must be exactly zero in what the layers use,
    quantized weights must be on their grid, the teacher must compute bit by bit the same as the model
    before, its distance must match the formula and have a gradient, and ``strip()`` must leave
    a plain model with the same outputs.

    Parameters
    ----------
    pruner, quantizer : Subject
        The two classes, with their test settings.
    kinds : sequence of str
        The test models: 'cnn', whose activations are quantized too, and 'mlp', where only weights
        are. Models in which one of the two finds nothing to compress are skipped.

    Returns
    -------
    str
        Why the two refuse to work together, or an empty string. A refusal is a LilliputError; the model
        must then have the same parts as before.

    Raises
    ------
    ConformanceError
        With the broken promise.

    Examples
    --------
    >>> from lilliput.testing import Subject
    >>> from lilliput.torch import LevelPruner, NaiveQuantizer
    >>> check_together(Subject(LevelPruner), Subject(NaiveQuantizer))
    ''
    """
    lab, refusals = pruner.lab, []
    kinds = [kind for kind in kinds if pruner.models(kind) and quantizer.models(kind)]
    expect(kinds, f"{pruner.name} and {quantizer.name} have no test model in common.")
    for kind in kinds:
        with lab.isolated():
            lab.set_seed(0)
            trio = Trio(pruner, quantizer, kind)
            refusals.append(trio.compress())
            if not refusals[-1]:
                trio.check()
    return next(filter(None, refusals), "")


class Trio:
    """A model with a pruner, a quantizer and a distiller attached.

    Parameters
    ----------
    pruning, quantizing : Subject
        The compressors.
    kind : str
        The kind of test model.
    """

    def __init__(self, pruning: Subject, quantizing: Subject, kind: str) -> None:
        self.pruning, self.quantizing, self.kind = pruning, quantizing, kind
        self.where = f"{pruning.name} and {quantizing.name} on {kind!r}"
        self.lab = lab = pruning.lab
        self.model = lab.SPECIMENS[kind]()
        self.optimizer = lab.optimizer(self.model)
        lab.train(self.model, self.optimizer, 1)  # so that the optimizer has state for all weights
        self.anatomy = Anatomy(lab, self.model, self.optimizer)
        self.original = lab.outputs(self.model)
        # Created before the others, so that its teacher is the original; attached after them.
        self.distiller = Distiller(self.model, _RULES[kind], self.optimizer)
        self.pruner: Any = None
        self.quantizer: Any = None

    def compress(self) -> str:
        """Compress the model with all three; if they refuse, return the reason and leave the model plain."""
        reason = self._attach()
        if reason:
            for compressor in (self.distiller, self.quantizer, self.pruner):
                if compressor is not None:
                    compressor.strip()
            self.anatomy.expect_same(f"{self.where}, after a refusal ({reason})", values=False)
        return reason

    def _attach(self) -> str:
        try:
            self.pruner = self.pruning.build(self.model, self.optimizer)
            self.pruner.compress(self.model)
            self.quantizer = self.quantizing.build(self.model, self.optimizer, **self._settings())
            self.quantizer.compress(self.model)
            if isinstance(self.quantizer, PTQQuantizer):
                self.quantizer.calibrate([self.lab.batch(self.model)], progress=False)
            self.distiller.compress()
        except LilliputError as error:
            return str(error)
        return ""

    def _settings(self) -> dict[str, Any]:
        subject = self.quantizing
        settings: dict[str, Any] = {"quant_bits": _BITS} if subject.has_bits else {}
        if self.kind == "mlp" and "quant_types" in subject.cls.rule.model_fields:
            settings["quant_types"] = ["weight"]
        return settings

    def check(self) -> None:
        """Check all promises before and after training, and strip."""
        watch = Watch(self.lab, self.pruner)
        self._expect_compressed("after compress()")
        self._expect_taught()
        for _ in range(_STEPS):
            self.lab.train(self.model, self.optimizer, 1, self.distiller)
            for compressor in (self.pruner, self.quantizer):
                if compressor.optimizer is None:
                    compressor.step()
        self._expect_compressed("after training")
        has_zeros = any(np.any(e.mask == 0) for e in self._masked())
        expect(has_zeros, f"{self.where}: nothing is pruned, so nothing was checked.")
        if self._holds_zeros and self.pruner.optimizer is not None:
            watch.expect_zeros(self.where)
            watch.expect_training(self.where)
        self._strip()

    # -- compressed -----------------------------------------------------------------------------------

    @property
    def _holds_zeros(self) -> bool:
        """Whether pruned weights stay pruned, and are zero in the raw weights, too."""
        return not (self.pruner.regrows or self.pruner.computes_weights)

    def _masked(self) -> list[Entry]:
        return [e for e in entries(self.lab, self.pruner, with_bias=True) if e.mask is not None]

    def _expect_compressed(self, when: str) -> None:
        where = f"{self.where}, {when}"
        for entry in self._masked():
            expect_zero(entry.seen[entry.mask == 0], f"{where}, masked weights of {entry.label}")
        for entry in entries(self.lab, self.quantizer):
            if "weight" in entry.wrapper.roles:
                expect_on_grid(self.lab, self.quantizer, entry, where)
        if not quantizes_activations(self.quantizer):
            twin = self.anatomy.twin(self.pruner, self.quantizer)
            wanted = self.lab.outputs(twin)
            expect_close(self.lab.outputs(self.model), wanted, f"{where}, outputs against a twin")
        teacher = self.lab.outputs(self.distiller.teacher)
        expect_equal(teacher, self.original, f"{where}, outputs of the teacher")

    # -- taught ---------------------------------------------------------------------------------------

    def _expect_taught(self) -> None:
        """Expect the distances of the formulas, and a gradient of their sum at each weight."""
        output, total = self.lab.compare(self.model, self.distiller)
        values = {name: self.lab.read(x) for name, x in self.distiller.values.items()}
        last = _RULES[self.kind][2]["op_names"][0]
        wanted = {
            "(model)": kl_divergence(output, self.original, _TEMPERATURE),
            last: np.square(np.float64(output) - self.original).mean(),
        }
        for name, value in wanted.items():
            what = f"{self.where}, the distance at {name!r}"
            expect_close(np.float32(values[name]), np.float32(value), what)
        weights = {"(model)": _WEIGHTS["(model)"], last: _WEIGHTS["features"]}
        added = sum(weights.get(name, 1.0) * float(value) for name, value in values.items())
        expect_close(np.float32(total), np.float32(added), f"{self.where}, the distance in all")
        found = self.lab.gradients(self.model, self.distiller)
        for entry in entries(self.lab, self.quantizer):
            expect_gradient(found.get(id(entry.weight)), f"{self.where}, {entry.label}")
        for entry in self._masked() if self._holds_zeros else ():
            gradient = found.get(id(entry.weight))
            if gradient is not None:
                what = f"{self.where}, the gradient where {entry.label} is masked"
                expect_zero(gradient[entry.mask == 0], what)

    # -- stripped -------------------------------------------------------------------------------------

    def _strip(self) -> None:
        lab, model, where = self.lab, self.model, f"{self.where}, after strip()"
        before = lab.outputs(model)
        self.distiller.strip()
        expect_equal(lab.outputs(model), before, f"{where} of the distiller, outputs")
        masks = [(e.label, e.weight, e.mask) for e in self._masked()]
        if self.kind == "mlp" and self._strip_pruner():
            expect_close(lab.outputs(model), before, f"{where} of the pruner, outputs")
            self.quantizer.strip()
        else:
            self.quantizer.strip()
            before, shown = lab.outputs(model), [(e.weight, e.seen) for e in self._masked()]
            self.pruner.strip()
            expect_close(lab.outputs(model), before, f"{where} of the pruner, outputs")
            for weight, value in shown:
                expect_close(lab.read(weight), value, f"{where}, a weight that was masked")
        for label, weight, mask in masks:
            expect_zero(lab.read(weight)[mask == 0], f"{where}, masked weights of {label}")
        self.anatomy.expect_same(where, values=False)

    def _strip_pruner(self) -> bool:
        """Strip the pruner under the quantizer; return whether that is possible."""
        try:
            self.pruner.strip()
        except StageError:  # its zeros would not stay
            return False
        return True


def expect_on_grid(lab: Lab, quantizer: Any, entry: Entry, where: str) -> None:
    """Expect a layer to use integer multiples of its scales; without scales, few values."""
    found = quantizer.qparams(entry.wrapper, QuantType.WEIGHT)
    what = f"{where}, {entry.label}"
    if found is None:
        count, most = len(np.unique(entry.seen)), 2**_BITS
        expect(count <= most, f"{what} has {count} values, at most {most} fit {_BITS} bits.")
        return
    shape, grid = entry.seen.shape, found.grid
    scale, zero = (_spread(lab.read(x), shape, grid) for x in (found.scale, found.zero_point))
    steps = entry.seen.astype(np.float64) / scale + zero
    off = np.abs(steps - np.round(steps)).max()
    expect(off < 1e-2, f"{what} is off its grid by {off:.2g} of a step.")
    low, high = np.round(steps).min(), np.round(steps).max()
    is_inside = grid.low <= low and high <= grid.high
    expect(is_inside, f"{what} has the integers {low} to {high}, not {grid.low} to {grid.high}.")


def _spread(values: Array, shape: tuple[int, ...], grid: Any) -> Array:
    """Return scales in a shape that broadcasts with a weight."""
    if grid.axis is None:
        return values
    if grid.group_size is not None:
        wide = np.repeat(values, grid.group_size, grid.axis)
        return np.take(wide, np.arange(shape[grid.axis]), grid.axis)
    return values.reshape([-1 if i == grid.axis % len(shape) else 1 for i in range(len(shape))])


def kl_divergence(student: Array, teacher: Array, temperature: float) -> float:
    """Return ``T² · KL(teacher ‖ student)`` of logits, the mean over samples.

    Examples
    --------
    >>> one = np.array([[2.0, 0.0]])
    >>> round(kl_divergence(one, -one, 1.0), 4), kl_divergence(one, one, 2.0)
    (1.5232, 0.0)
    """

    def logs(scores: Array) -> Array:
        scores = np.float64(scores) / temperature
        return scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    wanted, answered = logs(teacher), logs(student)
    return float((np.exp(wanted) * (wanted - answered)).sum(-1).mean() * temperature**2)
