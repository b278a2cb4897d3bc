"""Prune single weights of a model's layers one after the other, and refit the remaining ones of each.

As in :mod:`~lilliput.frameworks.torch.reconstruct`, each layer is fitted to the output of the original
there, from the inputs in the pruned model, so that it also compensates for the errors of the layers before
it. Here the fit chooses the weights as well. Nothing is written to the model before :meth:`Surgery.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.errors import StageError
from lilliput.frameworks.torch.least_squares import NormalEquations
from lilliput.frameworks.torch.readers import Reader
from lilliput.frameworks.torch.reconstruct import WIDEST, Work, price_of_moving
from lilliput.ops.namespace import Tensor
from lilliput.ops.surgery import find_support, fit_support
from lilliput.progress import track


@dataclass(frozen=True, eq=False)
class Task:
    """A weight to prune: its names, the function that keeps entries by score, and the mask without a fit."""

    names: frozenset[str]
    keep: Callable[[Tensor], Tensor]  # from scores in the weight's shape to its mask
    fallback: Tensor  # for a layer that cannot be fitted
    obstacle: str = ""  # why it cannot be fitted


class Surgery(Work):
    """One run over a model: the masks, and the fitted tensors.

    Parameters
    ----------
    model : torch.nn.Module
        The unpruned model.
    batches : iterable
        A few hundred examples, without labels.
    tasks : mapping of str to Task
        The weights to prune, by the names under which masks are returned.
    over_processes : callable
        Returns the sum of a tensor over all processes.
    """

    title = "calibrate()"

    def __init__(
        self,
        model: Any,
        batches: Iterable[Any],
        tasks: Mapping[str, Task],
        over_processes: Callable[[Tensor], Tensor],
    ) -> None:
        self.over_processes = over_processes
        super().__init__(model, model, batches)
        self.masks: dict[str, Tensor] = {}
        self.fitted: dict[str, Tensor] = {}  # by the names of the model's tensors
        self.tasks = tasks
        self.by_weight = {name: key for key, task in tasks.items() for name in task.names}
        self.found = {self._key(r): r for r in self.readers if self._key(r) is not None}

    def run(self, ridge: float, progress: bool) -> None:
        """Prune all layers, in the order in which they run."""
        self._prune_without_fit()
        for reader in track(list(self.found.values()), "pruning", progress):
            self._move_on(self.program.place[reader.node])
            self._prune(reader, self.tasks[str(self._key(reader))], ridge)

    def check_unchanged(self) -> None:
        """Raise if the model was trained or loaded since, because the fitted tensors would undo it."""
        names = {
            self.names[name]: name for name in self.wanted if name in self.names
        }  # no constants
        for name in self.fitted:
            if not self.live[name].equal(self.wanted[names[name]]):
                raise StageError(
                    f"{name!r} has changed since calibrate(); call compress() right after it, or "
                    "calibrate() again."
                )

    def apply(self) -> None:
        """Write the fitted tensors into the model."""
        for name, value in self.fitted.items():
            self.live[name].data.copy_(value)

    def _behind_changes(self, readers: list[Reader]) -> list[Reader]:
        return readers

    def _key(self, reader: Reader) -> str | None:
        """Return the task of a layer that can be fitted, or None."""
        key = self.by_weight.get(self.names[reader.weight])
        inputs = self.tensors[reader.weight][0].numel()
        is_fit = key is not None and not self.tasks[key].obstacle and inputs <= WIDEST
        return key if is_fit else None

    def _prune_without_fit(self) -> None:
        """Apply the fallback masks to weights that cannot be fitted, so that later layers see them."""
        for key in self.tasks.keys() - self.found.keys():
            task = self.tasks[key]
            self.masks[key] = task.fallback
            why = task.obstacle or "no convolution or linear layer reads it alone"
            self.left[key] = f"pruned by magnitude and not refitted: {why}"
            for name in self.tensors:
                if self.names.get(name) in task.names:
                    self.tensors[name] = self.tensors[name] * task.fallback

    def _prune(self, reader: Reader, task: Task, ridge: float) -> None:
        weight, groups = self.tensors[reader.weight], reader.groups
        start = _as_matrix(weight, groups)
        equations = self._collect_all(reader, start.shape[1])
        has_shift = reader.bias is not None or reader.norm is not None
        mean_x, mean_y, hessian, products = _centred(equations, has_shift)
        price = price_of_moving(ridge, start.shape[1], equations.count)
        damp = price * np.maximum(hessian.diagonal(axis1=1, axis2=2).mean(1), 1e-12)
        hessian = hessian + damp[:, None, None] * np.eye(start.shape[1])
        products = products + damp[:, None, None] * start
        allowed = start != 0  # entries that another pruner has removed stay removed
        scale = self._effect(reader, start.shape)

        def choose(gain: Any) -> Any:
            score = weight.new_tensor(_as_weight(np.where(allowed, gain, 0.0), weight))
            return _as_matrix(task.keep(score), groups) != 0

        free = np.linalg.solve(hessian, products)
        support = find_support(hessian, products * scale, free * allowed * scale, choose)
        fitted = fit_support(hessian, products, support & allowed)
        self.masks[str(self._key(reader))] = weight.new_tensor(_as_weight(support, weight))
        shift = mean_y - mean_x @ fitted if has_shift else 0 * mean_y
        before = _as_matrix(weight * task.fallback, groups)
        self._report(reader, equations, before, fitted, shift)
        self._write(reader.weight, weight.new_tensor(_as_weight(fitted, weight)))
        if has_shift:
            self._write_shift(reader, weight.new_tensor(shift[:, 0].ravel()))

    def _collect_all(self, reader: Reader, inputs: int) -> NormalEquations:
        """Return the least-squares problem of a layer, from the data of all processes."""
        weight = self.tensors[reader.weight]
        every = weight.new_ones(reader.groups, inputs).bool()
        equations = self._collect(reader, None, every)
        for name in ("xx", "xy", "x", "y", "yy"):
            setattr(equations, name, self.over_processes(getattr(equations, name)))
        count = equations.y.new_full((1,), equations.count)
        equations.count = int(self.over_processes(count).item())
        return equations

    def _effect(self, reader: Reader, shape: tuple[int, ...]) -> Any:
        """Return the factor of each output in the norm that follows, or 1."""
        if reader.norm is None:
            return 1.0
        factor: Any = reader.norm.factor(self.tensors).abs().cpu().numpy()
        return factor.reshape(shape[0], 1, shape[2])

    def _report(
        self, reader: Reader, equations: NormalEquations, before: Any, fitted: Any, shift: Any
    ) -> None:
        outputs = equations.yy.new_ones(equations.yy.shape).bool()
        as_tensor = equations.yy.new_tensor
        self.errors[reader.weight] = (
            equations.error(as_tensor(before), self._shift(reader, reader.groups), outputs),
            equations.error(as_tensor(fitted), as_tensor(shift[:, 0]), outputs),
        )

    def _write(self, name: str, value: Any) -> None:
        self.tensors[name] = value.to(self.tensors[name].dtype)
        self.fitted[self.names[name]] = self.tensors[name]


def _centred(equations: NormalEquations, has_shift: bool) -> tuple[Any, Any, Any, Any]:
    """Return the means of inputs and outputs, and their mean products about these."""
    x, y, xx, xy = (
        (tensor / equations.count).cpu().numpy()
        for tensor in (equations.x, equations.y, equations.xx, equations.xy)
    )
    if has_shift:
        turned = x.transpose(0, 2, 1)
        xx, xy = xx - turned @ x, xy - turned @ y
    return x, y, xx, xy


def _as_matrix(weight: Any, groups: int) -> Any:
    """Return a weight as (groups, inputs, outputs)."""
    array = weight.detach().double().cpu().numpy()
    return array.reshape(groups, len(array) // groups, -1).transpose(0, 2, 1)


def _as_weight(matrix: Any, like: Any) -> Any:
    """Return (groups, inputs, outputs) in the shape of a weight."""
    return matrix.transpose(0, 2, 1).reshape(tuple(like.shape))
