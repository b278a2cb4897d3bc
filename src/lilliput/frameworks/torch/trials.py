"""Try a plan on a copy of a model: cut it, run it, and compare it with the masked one."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from lilliput.frameworks.torch.build import Parts, build
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.perturb import Noise
from lilliput.frameworks.torch.rewrite import Edit, find_cause
from lilliput.frameworks.torch.track import Failure, describe, failing_module
from lilliput.frameworks.torch.verify import Reference, Twin
from lilliput.graph.plan import Plan

log = logging.getLogger("lilliput")


class Trials:
    """The comparison of shrunk copies of a model with the masked one.

    The base of :class:`~lilliput.frameworks.torch.plans.Plans`, which says what to try. A subclass sets
    the attributes before the first trial.
    """

    plain: nn.Module  # without compressors
    masked: nn.Module
    example_inputs: Any
    edits: list[Edit]  # numbers in the code that would change
    noise: Noise
    reference: Reference
    noisy_reference: Reference  # with noise on the weights

    def __init__(self) -> None:
        self._parts: Parts = {}
        self._is_steady = False  # looked at when outputs differ

    def _try(self, plan: Plan, failures: list[Failure]) -> float:
        """Return the error of a plan, inf if it does not run; what went wrong is added to ``failures``."""
        try:
            twin = self._twin(plan)
        except Exception as failure:
            failures.append(Failure("", describe(failure)))
            return float("inf")
        reference = self.reference
        try:
            error = reference.error(twin.model)
            if error <= reference.tolerance:
                # With other weights, too: a head of zeros, say, would hide any difference.
                reference = self.noisy_reference
                error = max(error, self._error_with_noise(plan, twin))
        except Exception as failure:
            path = failing_module(twin.model, reference.error)
            failures.append(Failure(path, describe(failure)))
            return float("inf")
        finally:
            twin.free()
        if error > self.reference.tolerance:
            if not self._is_steady:
                self.reference.check_steady(unwrapped(self.masked))
                self._is_steady = True
            cause = find_cause(self.edits) if not plan.graphs else ""
            failures.append(Failure("", f"its outputs differ by {error:.1e} of the largest{cause}"))
        return error

    def _error_with_noise(self, plan: Plan, twin: Twin) -> float:
        """Return the error with noise on the weights."""
        noisy = self._twin(plan) if twin.keeps_tables() else twin
        noisy.use(self.noise.add_cut)
        try:
            return self.noisy_reference.error(noisy.model)
        finally:
            if noisy is not twin:
                noisy.free()

    def _twin(self, plan: Plan) -> Twin:
        """Return a shrunk copy in the precision of the comparison."""
        built = build(self.plain, plan, self.example_inputs, self._parts)
        return Twin(built, self.reference.precision)

    def _takes_other_batches(self, plan: Plan) -> bool:
        """Whether a plan also passes for batches of other sizes."""
        others = self.reference.with_other_batches(self.masked)
        twin = self._twin(plan).model
        try:
            return bool(others) and all(x.error(twin) <= x.tolerance for x in others or ())
        except Exception as failure:
            log.debug("speedup: sizes cannot be dynamic: %s", describe(failure))
            return False
