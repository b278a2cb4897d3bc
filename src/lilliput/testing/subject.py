"""The class under test, and how to make one for a given model."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lilliput.backends.torch.discover import DEFAULT_TYPES
from lilliput.core.compressor import Compressor
from lilliput.testing.candidate import Candidate
from lilliput.testing.models import SPECIMENS, Specimen

Make = Callable[[nn.Module, list[dict[str, Any]], Any], Compressor]


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
    >>> from lilliput.torch import AGPPruner
    >>> Subject(AGPPruner).rules(op_names=["fc"])
    [{'final_sparsity': 0.5, 'start_epoch': 0, 'end_epoch': 0, 'op_names': ['fc']}]
    """

    def handles(self, model: type[Specimen] | nn.Module) -> bool:
        """Whether the class compresses any layer of such a model."""
        built = model if isinstance(model, nn.Module) else model()
        present = {c.__name__ for module in built.modules() for c in type(module).__mro__}
        return not present.isdisjoint(self._wanted_types())

    def models(self, *kinds: type[Specimen]) -> list[Specimen]:
        """Return fresh models of these kinds (all by default), without those of no use here."""
        return [kind() for kind in kinds or SPECIMENS if self.handles(kind)]

    def model(self) -> Specimen:
        """Return a fresh model for checks that need only one."""
        kind = next((kind for kind in SPECIMENS if self.handles(kind)), None)
        if kind is None:
            raise self.no_model_fits(self._wanted_types(), "Conv2d or Linear")
        return kind()

    def _wanted_types(self) -> set[str]:
        return self.wanted_types(DEFAULT_TYPES)


Check = Callable[[Subject], None]


def seeded(check: Check) -> Check:
    """Run a check from fixed seeds on one thread, and put both back as they were.

    One thread is the fastest for models this small, and gives the same sums on every machine.
    """

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        threads, state = torch.get_num_threads(), random.getstate()
        with torch.random.fork_rng(devices=[]):
            torch.set_num_threads(1)
            set_seed(0)
            try:
                check(subject)
            finally:
                torch.set_num_threads(threads)
                random.setstate(state)

    return run


def set_seed(seed: int) -> None:
    """Seed every source of random numbers that an algorithm is likely to use."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
