"""Refit the layers of a pruned torch model by least squares; see ``recovery/reconstruct.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.frameworks.torch.batches import arguments_of
from lilliput.frameworks.torch.capture import capture
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.cutting import named_tensors
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import Inputs
from lilliput.frameworks.torch.least_squares import NormalEquations
from lilliput.frameworks.torch.program import Program, Replay, Values
from lilliput.frameworks.torch.readers import Reader, find_readers
from lilliput.frameworks.torch.sidecar import mask_of, narrow_of
from lilliput.frameworks.torch.wrapper import QuantizerModuleWrapper
from lilliput.progress import track

WIDEST = 8192  # inputs of a layer whose normal equations are solved; for wider ones, only the bias
_MEMORY = 1 << 30  # bytes of activations that are kept instead of computed again
_ROWS = 32_768  # positions per layer, over all examples
_PER_ROW = 100  # factor of the ridge, times inputs per row
_ROWS_OF_GROUPS = 4096  # if each group has few inputs of its own


Errors = dict[str, tuple[float, float]]


@torch.no_grad()
def refit(
    model: nn.Module, batches: Iterable[Any], teacher: nn.Module, ridge: float, progress: bool
) -> tuple[Errors, dict[str, str]]:
    """Refit all layers; return the error of each before and after, and why others were skipped."""
    work = Work(model, teacher, batches)
    try:
        work.run(ridge, progress)
    except BaseException:
        work.undo()
        raise
    return work.errors, work.left


class Work:
    """One reconstruction: the graph, run with the tensors of both models in parallel."""

    title = "reconstruct()"  # the function that users have called

    def __init__(self, model: nn.Module, teacher: nn.Module, examples: Iterable[Any]) -> None:
        batches: list[Inputs] = [arguments_of(model, batch) for batch in examples]
        _check(model, teacher, batches, self.title)
        self.model = unwrapped(model)
        self.live = named_tensors(self.model)
        plain, original = plain_copy(model), plain_copy(teacher)
        shapes = {tuple(_shapes(batch)) for batch in batches}
        captured = capture(plain, *batches[0], any_size=len(shapes) > 1)
        self.names, self.count = captured.names, len(batches)
        self.tensors = {x: t.detach() for x, t in captured.tensors.items()}
        known = named_tensors(original)
        self.wanted = {x: known.get(x, t).detach() for x, t in self.tensors.items()}
        self.program = Program(captured)
        self.pruned = Replay(self.program, self.tensors, batches)
        self.original = Replay(self.program, self.wanted, batches)
        self.readers = self._behind_changes(find_readers(captured))
        self.errors: Errors = {}
        self.left: dict[str, str] = {}
        self._before: dict[str, Tensor] = {}  # previous values of the written tensors

    def run(self, ridge: float, progress: bool) -> None:
        """Refit all layers, and write them into the model."""
        for reader in track(self.readers, "refitting", progress):
            self._move_on(self.program.place[reader.node])
            self._refit(reader, ridge)

    def _behind_changes(self, readers: list[Reader]) -> list[Reader]:
        """Return the layers whose inputs differ from those in the original model."""
        changed: set[fx.Node] = set()
        for node in self.program.nodes:
            name = str(node.target)
            if node.op == "get_attr" and name in self.tensors:
                is_changed = not torch.equal(self.tensors[name], self.wanted[name])
            else:
                is_changed = any(x in changed for x in node.all_input_nodes)
            if is_changed:
                changed.add(node)
        return [x for x in readers if x.source in changed or x.other in changed]

    def _move_on(self, place: int) -> None:
        """Keep the values that later layers need, unless they take too much memory."""
        if 2 * self.count * self.program.size(place) <= _MEMORY:
            self.pruned.advance(place)
            self.original.advance(place)

    def _refit(self, reader: Reader, ridge: float) -> None:
        weight, groups = self.tensors[reader.weight], reader.groups
        allowed = self._allowed(reader.weight).reshape(groups, weight.shape[0] // groups, -1)
        inputs, outputs = allowed.any(1), allowed.any(2)  # (groups, inputs), (groups, outputs)
        why = _why_not(allowed, inputs, outputs)
        if why:
            self.left[reader.weight] = why
            return
        columns = inputs[0].nonzero().flatten() if groups == 1 else None
        equations = self._collect(reader, columns, inputs)
        matrix = weight.reshape(allowed.shape).mT.double()
        start = matrix if columns is None else matrix[:, columns]
        has_shift = reader.bias is not None or reader.norm is not None
        price = price_of_moving(ridge, start.shape[1], equations.count)
        fitted, shift = equations.solve(start, price, has_shift)
        before = self._shift(reader, groups)
        self.errors[reader.weight] = (
            equations.error(start, before, outputs),
            equations.error(fitted, shift if has_shift else before, outputs),
        )
        matrix = matrix.clone()
        matrix[:, slice(None) if columns is None else columns] = fitted
        matrix = matrix * outputs[:, None]
        self._write(reader.weight, matrix.mT.reshape(weight.shape))
        if has_shift:
            self._write_shift(reader, (shift * outputs).flatten())

    def _collect(self, reader: Reader, columns: Tensor | None, inputs: Tensor) -> NormalEquations:
        """Return the least-squares problem of a layer, from some positions of all batches."""
        equations, place = NormalEquations(), self.program.place
        weight, groups = self.tensors[reader.weight], reader.groups
        for batch in range(self.count):
            goal = self.original.run(batch, place[reader.goal] + 1, keep=(reader.goal,))[
                reader.goal
            ]
            rows = (_ROWS if groups == 1 else _ROWS_OF_GROUPS) // self.count
            picked = _pick(reader, goal, rows, batch)
            seen: list[Tensor] = []

            def see(values: Values, picked: Tensor = picked, seen: list[Tensor] = seen) -> None:
                seen.append(reader.patches(values[reader.source], picked, weight))

            stop = place[reader.node] + 1 if reader.total is None else place[reader.total]
            values = self.pruned.run(batch, stop, before={reader.node: see})
            wanted = reader.rows(goal, picked)
            if reader.other is not None:
                wanted = self._before_norm(
                    reader, wanted - reader.rows(values[reader.other], picked)
                )
            read = seen[0] * inputs[:, None] if columns is None else seen[0][:, :, columns]
            equations.add(read, wanted.reshape(len(wanted), groups, -1).transpose(0, 1))
            if not equations.is_finite():
                raise AlgorithmError(
                    f"{self.title}: batch {batch + 1}: the inputs or target outputs of layer "
                    f"{self.names[reader.weight].rpartition('.')[0]!r} contain NaN or "
                    "infinity; check the data and the weights. Nothing was changed."
                )
        return equations

    def _before_norm(self, reader: Reader, wanted: Tensor) -> Tensor:
        """Return the output of a layer for which its norm returns this."""
        if reader.norm is None:
            return wanted
        factor, shift = reader.norm.factor(self.tensors), reader.norm.shift(self.tensors)
        safe = torch.where(factor == 0, 1.0, factor)  # a removed channel, which is not fitted
        found: Tensor = ((wanted.double() - shift) / safe).to(wanted.dtype)
        return found

    def _shift(self, reader: Reader, groups: int) -> Tensor:
        """Return the shift that a layer adds itself, as (groups, outputs)."""
        bias = None if reader.bias is None else self.tensors[reader.bias]
        weight = self.tensors[reader.weight]
        return (weight.new_zeros(len(weight)) if bias is None else bias).double().view(groups, -1)

    def _allowed(self, name: str) -> Tensor:
        """Return which weights are not masked."""
        path, _, leaf = name.rpartition(".")
        mask = mask_of(self.model.get_submodule(path), leaf)
        if mask is not None:
            return mask.ne(0)
        kept: Tensor = self.tensors[name].ne(0) | self.wanted[name].eq(0)
        return kept

    def undo(self) -> None:
        """Restore the tensors written to the model."""
        for name, value in self._before.items():
            self.live[name].data.copy_(value)

    def _write(self, name: str, value: Tensor) -> None:
        held = self.live[self.names[name]]
        self._before.setdefault(self.names[name], held.detach().clone())
        held.data.copy_(value)
        self.tensors[name] = value.to(held.dtype)

    def _write_shift(self, reader: Reader, shift: Tensor) -> None:
        """Write the constant part of a layer into its bias, or the mean of the norm after it."""
        if reader.bias is not None:
            self._write(reader.bias, shift)
        elif reader.norm is not None:
            mean = self.tensors[reader.norm.mean]
            self._write(reader.norm.mean, mean.double() - shift)


def price_of_moving(ridge: float, inputs: int, rows: int) -> float:
    """Return the ridge of a layer: it grows with inputs per row, since few rows fit any target."""
    return ridge * (1 + _PER_ROW * inputs / rows)


def _why_not(allowed: Tensor, inputs: Tensor, outputs: Tensor) -> str:
    """Return why a weight with these masks cannot be refitted, or '' if it can."""
    if not bool((allowed == (outputs[:, :, None] & inputs[:, None])).all()):
        return "single weights of it are masked"
    if not bool(allowed.any()):
        return "all of it is masked"
    if allowed.shape[2] > WIDEST:
        return f"it has {allowed.shape[2]:,} inputs, too many to solve for"
    return ""


def _pick(reader: Reader, value: Tensor, rows: int, seed: int) -> Tensor:
    """Return some positions of an output, the same for both models."""
    count = rows if reader.is_linear else -(-rows // len(value))
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(reader.positions(value), generator=generator)[:count].to(value.device)


def _shapes(batch: Inputs) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in tree_flatten(batch)[0] if isinstance(x, Tensor)]


def _check(model: nn.Module, teacher: nn.Module, batches: list[Inputs], title: str) -> None:
    if not batches:
        raise AlgorithmError(f"{title}: no batches were given, expected a few hundred examples.")
    for number, batch in enumerate(batches, 1):
        shapes = [shape for shape in _shapes(batch) if shape]
        if shapes and all(shape[0] == 0 for shape in shapes):
            raise AlgorithmError(
                f"{title}: batch {number} has no examples: received a tensor of shape {shapes[0]}; omit "
                "this batch out. Nothing was changed."
            )
    own, other = (
        {x: tuple(t.shape) for x, t in named_tensors(plain_copy(m, share=True)).items()}
        for m in (model, teacher)
    )
    if own != other:
        names = sorted(set(own.items()) ^ set(other.items()))
        raise StageError(
            f"{title}: model and teacher differ in the shape of {names[0][0]!r}; expected the masked "
            "model, before speedup(), and a copy of it from before compress()."
        )
    for path, module in unwrapped(model).named_modules():
        if isinstance(module, QuantizerModuleWrapper):
            raise StageError(
                f"{title}: layer {module.name!r} is under {type(module.compressor).__name__}; call it "
                "first and quantize then."
            )
        if narrow_of(module) is not None:
            raise UnsupportedModelError(
                f"{path} ({type(module).__name__}) normalizes over channels of which some are masked; "
                f"{title} needs such channels to be kept: exclude the layers that produce them."
            )
