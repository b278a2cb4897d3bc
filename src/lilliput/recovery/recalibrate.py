"""Re-estimate the statistics of batch norms after pruning.

A batch norm normalizes by the mean and variance that its input had in training. If
channels before it were removed, these change; a few batches are enough to measure them. With the original,
only the effect of pruning is corrected; without it, the batches must be like those of the training.

The statistics of a batch are written into each norm just before it normalizes that batch, so that it
behaves as in training; those of all batches together are written at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lilliput.frameworks import part_for
from lilliput.recovery.norms import Moments, Renewal, check_model, check_original, renew

Statistics = tuple[Any, Any]  # mean and variance of each channel, in float64
Watched = tuple[str, Any, Callable[[Any], None]]  # name, norm, receiver of its inputs


class Norms(Protocol):
    """The module ``recalibrate`` of a framework: its batch norms and their inputs."""

    # Whether a copy of a model has other names, so that norms are matched by their order.
    NAMES_MAY_DIFFER: bool

    def norms_of(self, model: Any) -> dict[str, Any]:
        """Return the batch norms of a model that have running statistics, by name."""

    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers in a model, or in the one that it is a copy of."""

    def statistics(self, norm: Any) -> Statistics:
        """Return copies of the running statistics of a norm."""

    def write(self, norm: Any, mean: Any, variance: Any) -> None:
        """Set the statistics of a norm."""

    def epsilon(self, norm: Any) -> float:
        """Return the epsilon that a norm adds to the variance."""

    def watching(
        self, watched: Sequence[Watched], models: Sequence[Any]
    ) -> AbstractContextManager[None]:
        """Pass the inputs of norms, one row per channel; models are in evaluation mode, without gradients."""

    def over_processes(self, total: Any, squares: Any, count: int) -> tuple[Any, Any, int]:
        """Return sums over all processes."""

    def call(self, model: Any, batch: Any) -> Any:
        """Call a model with a batch of a data loader."""


def recalibrate(
    model: Any,
    batches: Iterable[Any],
    forward: Callable[[Any, Any], Any] | None = None,
    *,
    original: Any = None,
) -> None:
    """Re-estimate the running statistics of all batch norms from a few batches.

    Use it after pruning a model that is not trained any further; a few hundred examples are enough.
    Every example counts the same, however they are batched. Norms see each batch as in
    training, including frozen ones; dropout is off, and all modes are restored. Steps that a Keras
    mask hides are excluded.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        A pruned model, masked or cut; changed in place.
    batches : iterable
        A data loader or a list, with batches of at least 16 or so. Without ``original`` they must be
        like those that the model was trained on, all classes included: a norm adopts what it sees.
    forward : callable, optional
        ``forward(model, batch)``, which calls the model itself (``predict`` of Keras would compile it).
        By default the model is called with a tensor or dict, and with the inputs of a tuple
        ``(inputs, targets)``.
    original : torch.nn.Module or keras.Model, optional
        The model before pruning. The output of each norm then has the same mean and variance as
        there, on any batches. The model must be masked, not cut: call this before ``speedup``.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    >>> recalibrate(model, [torch.randn(16, 2), torch.randn(16, 2)])
    """
    part: Norms = part_for(model, "recalibrate")
    norms = part.norms_of(model)
    check_model(model, norms, part.quantizers_in(model))
    others = {} if original is None else _norms_of_original(part, model, original, norms)
    before = {name: part.statistics(norm) for name, norm in norms.items()}
    renewals = {name: _renewal(part, name, x, others.get(name)) for name, x in norms.items()}
    watched = [(name, norms[name], one.see) for name, one in renewals.items()]
    watched += [(name, others[name], renewals[name].see_original) for name in others]
    models = [model] if original is None else [original, model]

    def summed(seen: Moments) -> Moments:
        return Moments(seen.name, *part.over_processes(seen.total, seen.squares, seen.count))

    try:
        with part.watching(watched, models):
            for batch in batches:
                for each in models:
                    (forward or part.call)(each, batch)
        renew(renewals.values(), summed)
    except BaseException:
        for name, held in before.items():
            part.write(norms[name], *held)
        raise


def _norms_of_original(
    part: Norms, model: Any, original: Any, norms: dict[str, Any]
) -> dict[str, Any]:
    others = part.norms_of(original)
    if part.NAMES_MAY_DIFFER and len(others) == len(norms):
        others = dict(zip(norms, others.values(), strict=True))
    check_original(original is model, _sizes(part, norms), _sizes(part, others))
    return others


def _sizes(part: Norms, norms: dict[str, Any]) -> dict[str, int]:
    return {name: len(part.statistics(norm)[0]) for name, norm in norms.items()}


def _renewal(part: Norms, name: str, norm: Any, other: Any) -> Renewal:
    def write(mean: Any, variance: Any) -> None:
        part.write(norm, mean, variance)

    if other is None:
        return Renewal(name, write)
    return Renewal(name, write, (*part.statistics(other), part.epsilon(other)))
