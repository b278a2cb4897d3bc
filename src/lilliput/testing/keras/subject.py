"""The class under test, and how to make one for a given model of Keras."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np

from lilliput.backends.keras.discover import DEFAULT_TYPES, discover
from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError
from lilliput.testing.candidate import Candidate
from lilliput.testing.keras.models import SPECIMENS, Specimen

Make = Callable[[Any, list[dict[str, Any]], Any], Compressor]


@dataclass(frozen=True)
class Subject(Candidate):
    """A pruner or quantizer class, with the settings to test it with.

    Parameters
    ----------
    cls : type of Compressor
        The class.
    config : mapping, optional
        Settings that go into every rule. By default half of the weights are pruned at once, or
        weights are quantized to 8 bits. ``op_types`` narrows the test to models with such layers.
    make : callable, optional
        ``make(model, config_list, optimizer)`` returns a compressor, for a class whose constructor
        takes something else than these three. ``optimizer`` is None in most checks.

    Examples
    --------
    >>> from lilliput.keras import AGPPruner
    >>> Subject(AGPPruner).rules(op_names=["fc"])
    [{'final_sparsity': 0.5, 'start_epoch': 0, 'end_epoch': 0, 'op_names': ['fc']}]
    """

    def models(self, *kinds: Specimen) -> list[Any]:
        """Return fresh models of these kinds (all by default), without those of no use here."""
        found = [self._fresh(kind) for kind in kinds or SPECIMENS]
        return [model for model in found if model is not None]

    def model(self) -> Any:
        """Return a fresh model for checks that need only one."""
        for kind in SPECIMENS:
            model = self._fresh(kind)
            if model is not None:
                return model
        raise self.no_model_fits(self.wanted_types(DEFAULT_TYPES), "Conv2D or Dense")

    def _fresh(self, kind: Specimen) -> Any:
        """Return a model, None if the class finds nothing to compress in it."""
        if _types_in(kind).isdisjoint(self.wanted_types(DEFAULT_TYPES)):
            return None
        model = kind()
        if self.make is None:
            try:
                self.build(model)  # which only reads the model
            except ConfigError:  # no channels that can be removed, say
                return None
        return model


@cache
def _types_in(kind: Specimen) -> frozenset[str]:
    return frozenset(name for layer in discover(kind()) for name in layer.types)


Check = Callable[[Subject], None]


def seeded(check: Check) -> Check:
    """Run a check from fixed seeds, and put the sources of random numbers back as they were."""

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        with _random_state_kept(), _one_thread():
            set_seed(0)
            check(subject)

    return run


def set_seed(seed: int) -> None:
    """Seed every source of random numbers that an algorithm is likely to use."""
    keras.utils.set_random_seed(seed)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Put Python's and NumPy's generators back; that of Keras starts from zero again."""
    before, before_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread on torch: the fastest for models this small."""
    if keras.backend.backend() != "torch":
        yield
        return
    torch = sys.modules["torch"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
