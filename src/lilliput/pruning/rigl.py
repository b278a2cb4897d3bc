"""RigLPruner: train a sparse network from the start, and move its connections during training.

Evci et al., "Rigging the lottery: making all tickets winners", 2020. The network is sparse from the first
step. Every ``update_every`` steps, a share of each layer's connections is dropped, the smallest ones, and
as many are grown where the gradient of the loss is largest::

    share = drop_fraction / 2 * (1 + cos(pi * t / t_end))        t_end = stop_at * training_steps

New connections start at zero, and the optimizer treats them as new weights, without momentum. A connection
that is dropped and grown again in the same update keeps its value, as in the authors' code. After ``t_end``
connections no longer change. A ``total_sparsity`` is distributed by Erdős–Rényi-Kernel (ERK), which keeps
small layers denser.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> rules = [{"op_types": ["Linear"], "total_sparsity": 0.8}]
>>> model = RigLPruner(model, rules, optimizer, training_steps=1000).compress()
>>> int((model[0].weight != 0).sum()), int((model[2].weight != 0).sum())
(62, 38)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.select import Selection
from lilliput.config.spec import Fraction, PatternRule, Rule
from lilliput.core.checks import checked_number
from lilliput.core.masker import Answers, Targets
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError, ConfigError, Problem, StageError
from lilliput.ops.erk import erk_counts
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.patterns import keep_n_of_m
from lilliput.pruning.criterion import check_counts
from lilliput.pruning.granularity import (
    block_of,
    counts_of,
    find_misfits,
    spread_blocks,
    sum_blocks,
)
from lilliput.registry import register_pruner


class RigLRule(PatternRule):
    """A sparsity for each layer, or one for all layers of the rule together, distributed by ERK.

    An N:M pattern implies the sparsity.
    """

    total_sparsity: Fraction | None = Field(
        None, description="Fraction of the weights of all these layers to leave out."
    )

    @model_validator(mode="after")
    def _check_target(self) -> RigLRule:
        implied = self.pattern_sparsity
        given = [x for x in (self.sparsity, self.total_sparsity) if x is not None]
        if not self.exclude and len(given) != 1 and (given or implied is None):
            raise ValueError(
                "expected either 'sparsity' (per layer) or 'total_sparsity' (of all layers together), "
                f"received {'both' if given else 'neither'}."
            )
        if implied is not None and self.total_sparsity is not None:
            raise ValueError(
                f"'granularity' {self.granularity!r} has a sparsity of {implied:g} in each layer; omit "
                "'total_sparsity'."
            )
        return self


def drop_share(step: int, end: float, fraction: float) -> float:
    """Return the share of connections moved by an update.

    Examples
    --------
    >>> [round(drop_share(step, 100, 0.3), 3) for step in (0, 50, 100)]
    [0.3, 0.15, 0.0]
    """
    return fraction / 2 * (1 + math.cos(math.pi * step / end))


def move_connections(mask: Tensor, size: Tensor, gradient: Tensor, count: int) -> Tensor:
    """Return a mask with its ``count`` smallest connections dropped and as many grown.

    Connections are grown where the gradient is largest among all unconnected weights, including those
    just dropped.

    Parameters
    ----------
    mask : tensor
        Ones where there is a connection.
    size, gradient : tensor
        The magnitude of each weight and of its gradient; must not contain NaN.
    count : int
        How many to move, up to the number of connections.

    Examples
    --------
    >>> import torch
    >>> mask, size = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([3.0, 1.0, 0.0, 0.0])
    >>> move_connections(mask, size, torch.tensor([9.0, 1.0, 2.0, 4.0]), 1)
    tensor([1., 0., 0., 1.])
    """
    xp = namespace(mask)
    kept = _drop(mask, size, count)
    wanted = xp.where(kept == 0, gradient, -math.inf)
    return kept + prune_smallest(wanted, xp.size(mask) - count)


def move_in_groups(
    mask: Tensor, size: Tensor, gradient: Tensor, count: int, pattern: str, axis: int
) -> Tensor:
    """As :func:`move_connections`, keeping the number per group of an N:M pattern.

    Parameters
    ----------
    mask, size, gradient, count
        See there; the mask must follow the pattern.
    pattern : str
        Such as ``"2:4"``.
    axis : int
        Axis along which the groups lie.

    Examples
    --------
    >>> import torch
    >>> mask, size = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([3.0, 0.0, 1.0, 0.0])
    >>> move_in_groups(mask, size, torch.tensor([9.0, 8.0, 1.0, 4.0]), 1, "1:2", 0)
    tensor([1., 0., 0., 1.])
    """
    kept = _drop(mask, size, count)
    wanted = namespace(mask).where(kept == 0, gradient, math.inf)
    return keep_n_of_m(wanted, *counts_of(pattern), axis=axis)


def _drop(mask: Tensor, size: Tensor, count: int) -> Tensor:
    """Return a mask without its smallest connections."""
    return prune_smallest(namespace(mask).where(mask == 0, math.inf, size), count) * mask


@register_pruner("rigl")
class RigLPruner(Pruner):
    """Train a network that is sparse from the start, and regrow connections where gradients are large.

    Pruned weights are zero at each step; the set of pruned weights changes every ``update_every`` steps.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. A rule has ``sparsity`` (per layer), or
        ``total_sparsity`` (of all its layers, distributed by ERK), and optionally ``granularity``: blocks, or
        an N:M pattern, whose connections move within their groups. Gradients are read before the steps
        of ``optimizer``.
    training_steps : int
        The total number of optimizer steps. Longer training is what helps most.
    update_every : int
        Steps between two updates.
    drop_fraction : float
        Share of a layer's connections moved by the first update.
    stop_at : float
        Share of the training after which connections no longer change.
    seed : int
        Seed of the initial connections; all processes draw the same.

    Notes
    -----
    In the step of an update, gradients are dense until the optimizer uses them, so gradient clipping
    sees a larger norm. Weights are updated in that step as in any other.
    """

    paper = "Evci et al. 2020, Rigging the lottery"

    rule: ClassVar[type[Rule]] = RigLRule
    backends = ("torch",)
    regrows = True
    tracked = ("now_step", "updated_step")
    now_step: int = 0
    updated_step: int = 0
    training_steps: int = 0

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        training_steps: int | None = None,
        *,
        update_every: int = 100,
        drop_fraction: float = 0.3,
        stop_at: float = 0.75,
        seed: int = 0,
    ) -> None:
        counts = {"update_every": update_every}
        if training_steps is not None:  # without it, see _find_problems
            counts["training_steps"] = training_steps
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: received {value!r}, expected a number of steps from 1.")
        for name, share in {"drop_fraction": drop_fraction, "stop_at": stop_at}.items():
            checked_number(name, share, "a share in (0, 1]", lambda x: 0 < x <= 1)
        check_counts(0, seed=seed)
        self.training_steps = int(training_steps or 0)
        super().__init__(model, config_list, optimizer)
        self.update_every, self.drop_fraction = update_every, drop_fraction
        self.stop_at, self.seed = stop_at, seed
        self.set_wrappers_attribute("is_drawn", False)

    def step(self) -> None:
        """Follow one training step; connections move in every ``update_every``-th."""
        self.now_step += 1
        if self.is_wrapped and self._moves_at(self.now_step) and self.optimizer is None:
            raise StageError(
                "RigLPruner reads gradients before each step and needs an optimizer for this: pass the one "
                "that trains the model."
            )

    def targets(self) -> Targets:
        """Return the layers without connections yet, or all layers when connections are to be moved."""
        wrappers = self.get_modules_wrapper()
        due = [w for w in wrappers if not w.is_drawn] or (wrappers if self._has_seen() else [])
        return [(wrapper, wrapper.config.get("sparsity")) for wrapper in due]

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the new connections of the layers."""
        for wrapper, _ in targets:
            if not wrapper.is_drawn:
                yield wrapper, {"weight_mask": self._draw(wrapper)}
            elif wrapper.__dict__.get("_growth") is not None:  # else not used by the loss
                yield wrapper, {"weight_mask": self._move(wrapper)}

    def _draw(self, wrapper: Any) -> Tensor:
        """Return a random mask with as many ones as the rule requests."""
        import numpy as np  # imported here: importing Lilliput does not need NumPy

        layer, block = wrapper.layer_info, block_of(wrapper.layer_info)
        weight = wrapper.weight
        xp = namespace(weight)
        units = weight if block is None else sum_blocks(weight, block, layer)
        count, shape = xp.size(units), tuple(xp.shape(units))
        index = [w.name for w in self.get_modules_wrapper()].index(wrapper.name)
        order = np.random.default_rng([self.seed, index]).permutation(count)
        pattern = wrapper.config.get("granularity")
        if isinstance(pattern, str):
            kept, of = counts_of(pattern)
            moved = np.moveaxis(order.reshape(shape), layer.in_axis, -1)
            ranks = moved.reshape(-1, of).argsort(1).argsort(1)
            keep = np.moveaxis((ranks < kept).reshape(moved.shape), -1, layer.in_axis)
        else:
            keep = (order < self._kept(wrapper, count)).reshape(shape)
        mask = xp.to_float(self._backend.to_mask(keep, wrapper), like=weight)
        return mask if block is None else spread_blocks(mask, block, layer, xp.shape(weight))

    def _kept(self, wrapper: Any, count: int) -> int:
        """Return how many of a layer's weights or blocks are connected."""
        config = wrapper.config
        if "sparsity" in config:
            return count - prune_count(count, config["sparsity"])
        group = [w for w in self.get_modules_wrapper() if w.config == config]
        shapes = [_unit_shape(w) for w in group]
        total = sum(math.prod(shape) for shape in shapes)
        kept = erk_counts(shapes, total - prune_count(total, config["total_sparsity"]))
        return kept[[w.name for w in group].index(wrapper.name)]

    def _move(self, wrapper: Any) -> Tensor:
        """Return the mask of a layer after an update."""
        layer, block = wrapper.layer_info, block_of(wrapper.layer_info)
        weight, gradient = wrapper.weight.detach(), wrapper.__dict__["_growth"]
        xp = namespace(weight)
        for what, values in (("weights", weight), ("gradients", gradient)):
            if xp.any(xp.isnan(values)):
                raise AlgorithmError(
                    f"layer {wrapper.name!r} has NaN among its {what}, so nothing can be ranked."
                )
        scores = [xp.widen(wrapper.weight_mask), xp.abs(xp.widen(weight)), xp.abs(gradient)]
        if block is not None:
            scores = [sum_blocks(score, block, layer) for score in scores]
        mask = xp.to_float(scores[0] > 0, like=scores[1])
        share = drop_share(self.now_step, self.stop_at * self.training_steps, self.drop_fraction)
        count = round(share * xp.count_nonzero(mask))
        pattern = wrapper.config.get("granularity")
        if isinstance(pattern, str):
            return move_in_groups(mask, scores[1], scores[2], count, pattern, layer.in_axis)
        mask = move_connections(mask, scores[1], scores[2], count)
        return mask if block is None else spread_blocks(mask, block, layer, xp.shape(weight))

    # -- internals ---------------------------------------------------------------------------------

    def _moves_at(self, step: int) -> bool:
        """Whether connections move in a step; postponed to the next step if there were no gradients."""
        is_over = step >= self.stop_at * self.training_steps
        return not is_over and step - self.updated_step >= self.update_every

    def _has_seen(self) -> bool:
        return any("_growth" in wrapper.__dict__ for wrapper in self.get_modules_wrapper())

    def _is_due(self) -> bool:
        return bool(self.targets())

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        for wrapper in wrappers:
            wrapper.is_drawn = True

    def _follow_up(self, has_masks: bool) -> None:
        if self._has_seen():
            self.updated_step = self.now_step
            for wrapper in self.get_modules_wrapper():
                wrapper.__dict__.pop("_growth", None)

    def _refresh(self) -> None:
        if self._has_seen():  # what an optimizer remembers of pruned weights may have decayed
            self._backend.apply_masks(self.get_modules_wrapper(), self.optimizer)
        super()._refresh()
        self._show_gradients()

    def _show_gradients(self) -> None:
        """Make the next step expose the gradients of all weights, if connections move after it."""
        if self.is_wrapped and self.optimizer is not None and self._moves_at(self.now_step + 1):
            self._backend.show_gradients(self.get_modules_wrapper(), True)

    def _before_step(self) -> tuple[Callable[[], None], ...]:
        return (self._look_at_gradients,)

    def _look_at_gradients(self) -> None:
        """Record the gradients of possible new connections, and mask them."""
        wrappers = self.get_modules_wrapper()
        if not any(wrapper._shows_gradient for wrapper in wrappers):
            return
        for wrapper in wrappers:
            gradient = self._backend.gradient(wrapper, self.optimizer)
            wrapper.__dict__["_growth"] = (
                None if gradient is None else namespace(gradient).widen(gradient).clone()
            )
        self._backend.show_gradients(wrappers, False)

    def _take_state(self) -> None:
        super()._take_state()
        wrappers = self.get_modules_wrapper()
        for wrapper in wrappers:
            wrapper.__dict__.pop("_growth", None)
        # The step to come may differ from the one whose gradients were to be exposed.
        if any(wrapper._shows_gradient for wrapper in wrappers):
            self._backend.show_gradients(wrappers, False)
        self._show_gradients()

    def _follow_optimizer(self) -> None:
        self._check_reach()
        if self.optimizer is not None:
            self._backend.check_regrowth(self.optimizer, self.get_modules_wrapper())
        super()._follow_optimizer()
        self._show_gradients()

    def _leave_optimizer(self) -> None:
        super()._leave_optimizer()
        if self._wrappers is not None and self._backend.name in self.backends:
            self._backend.show_gradients(self._wrappers, False)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return patterns that do not fit, and the number of steps if it is missing."""
        problems = [*super()._find_problems(selection), *find_misfits(selection)]
        if not self.training_steps:
            text = "received None, expected the number of steps of the whole training."
            problems.append(Problem("training_steps", text))
        return problems


def _unit_shape(wrapper: Any) -> tuple[int, ...]:
    """Return the shape of a layer's weight, or that of its blocks."""
    layer, block = wrapper.layer_info, block_of(wrapper.layer_info)
    if block is None:
        return tuple(layer.shape)
    sides = (layer.shape[layer.out_axis], layer.shape[layer.in_axis])
    return tuple(size // part for size, part in zip(sides, block, strict=True))
