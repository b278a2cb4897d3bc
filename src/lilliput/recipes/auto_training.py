"""Train a cut network to match the original's outputs, as long as there is time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from lilliput.distillation.distiller import Distiller
from lilliput.errors import ConfigError
from lilliput.frameworks import backend_of
from lilliput.frameworks.looping import Epoch, Loop
from lilliput.recipes.framework import loop_named
from lilliput.recipes.functions import Functions
from lilliput.search.candidate import Candidate, Order
from lilliput.search.checked_data import require_batches

_RATE = 2e-3  # of Adam, falling to 0 along a cosine
_SHARE_OF_TIME = 0.85  # of the remaining time for training; the rest is for writing files


class Recovery:
    """The training of one network, with the original as its teacher and without labels.

    Parameters
    ----------
    order : Order
        The order that creates the network.
    framework : str
        ``"torch"`` or ``"keras"``.
    data : iterable, or callable that returns one
        The batches of an epoch.
    seed : int
        Seed of the training.
    """

    def __init__(self, order: Order, framework: str, data: Any, seed: int) -> None:
        self.order, self.data = order, data
        self.framework: Loop = loop_named(framework)
        self.framework.seed(seed)
        self.copied = backend_of(order.model).copy_model
        self.model, self.teacher = order.cut(), self.copied(order.model)
        self.optimizer = self.framework.start_recovery(self.model)
        self.done = 0

    def run(
        self,
        epochs: int,
        end: float | None,
        has_classes: bool,
        offer: Callable[[str, Candidate], bool],
    ) -> None:
        """Train, and offer the network after 1, 2, 4, … epochs, until one is good enough.

        Parameters
        ----------
        epochs : int
            The number of epochs; with an end, as many as the time allows.
        end : float, optional
            The end of the time limit, by the monotonic clock.
        has_classes : bool
            Whether the model returns one row of classes per example.
        offer : callable
            Takes a description and the quantized network; returns whether it is good enough.
        """
        planned, due = (epochs if end is None else 1), 1
        rules = [{"loss": "kl" if has_classes else "mse"}]
        while self.done < planned:
            start = time.monotonic()
            self._train(rules, planned)
            if end is not None and self.done == 1:
                left = _SHARE_OF_TIME * (end - time.monotonic())
                planned = 1 + max(0, int(left / max(time.monotonic() - start, 1e-3)))
            is_late = end is not None and time.monotonic() > end
            if self.done >= due or self.done == planned or is_late:
                due = 2 * self.done
                self.framework.evaluation_mode(self.model)
                candidate = self.order.quantized(self.copied(self.model))
                what = f"trained for {self.done} epoch{'s' * (self.done > 1)}"
                if offer(what, candidate) or is_late:
                    return

    def _train(self, rules: list[dict[str, Any]], planned: int) -> None:
        """Train one epoch."""
        rate = _RATE * 0.5 * (1 + math.cos(math.pi * self.done / planned))
        self.framework.set_rate(self.optimizer, rate)
        distiller = Distiller(
            self.model, rules, teacher=self.teacher, example_inputs=self.order.example_inputs
        )
        distiller.is_alone = True
        distiller.compress()
        epoch = Epoch(
            self.model,
            self.optimizer,
            again(self.data),
            Functions(),
            number=self.done,
            count=planned,
            distiller=distiller,
        )
        try:
            self.framework.train(epoch)
        finally:
            distiller.strip()
        self.done += 1


def again(data: Any) -> Iterator[Any]:
    """Return the batches of another epoch."""
    found = require_batches(data() if callable(data) else data)
    if iter(found) is found and not callable(data):
        raise ConfigError(
            "data: received an iterator, which can be read only once; pass a list, a loader, or the "
            "function that creates it."
        )
    return iter(found)
