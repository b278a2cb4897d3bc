"""Try a plan on a copy of a model: cut it, run it, and compare it with the masked one."""

from __future__ import annotations

import logging

from lilliput.frameworks.torch.build import Parts, build
from lilliput.frameworks.torch.chance import drawn_from
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.masked_model import MaskedModel
from lilliput.frameworks.torch.perturb import Noise
from lilliput.frameworks.torch.rewrite import find_cause, has_casts
from lilliput.frameworks.torch.track import Failure, describe, failing_module
from lilliput.frameworks.torch.verify import Twin, make_references
from lilliput.graph.plan import Plan

log = logging.getLogger("lilliput")


class Trials:
    """The comparison of shrunk copies with the masked model, whose outputs are computed once.

    Raises if the masked model's outputs depend on random numbers.
    """

    def __init__(self, work: MaskedModel) -> None:
        self._work = work
        self._masked = unwrapped(work.masked)
        self.parts: Parts = {}  # captured for the plans tried so far
        self._is_steady = False  # checked when outputs differ
        self._noise = Noise(self._masked, work.cuts)
        drawn = drawn_from(self._make_references)
        if drawn:
            self._reference.check_chance(self._masked, drawn)

    def _make_references(self) -> None:
        """Compute the outputs of the masked model, with its own weights and with noise on them."""
        work = self._work
        self._reference, self._noisy_reference = make_references(
            self._masked, work.example_inputs, has_casts(work.groups.analysis), self._noise.add
        )

    def run(self, plan: Plan) -> float | Failure:
        """Return the error of a plan that passes the comparison, or why it does not."""
        try:
            twin = self._twin(plan)
        except Exception as failure:
            return Failure("", describe(failure))
        reference = self._reference
        try:
            error = reference.error(twin.model)
            if error <= reference.tolerance:
                # With other weights, too: a head of zeros, say, would hide any difference.
                reference = self._noisy_reference
                error = max(error, self._error_with_noise(plan, twin))
        except Exception as failure:
            path = failing_module(twin.model, reference.error)
            return Failure(path, describe(failure))
        finally:
            twin.free()
        if error <= self._reference.tolerance:
            return error
        if not self._is_steady:
            self._reference.check_steady(self._masked)
            self._is_steady = True
        cause = find_cause(self._work.edits) if not plan.graphs else ""
        return Failure("", f"its outputs differ by {error:.1e} of the largest{cause}")

    def _error_with_noise(self, plan: Plan, twin: Twin) -> float:
        """Return the error with noise on the weights."""
        noisy = self._twin(plan) if twin.keeps_tables() else twin
        noisy.use(self._noise.add_cut)
        try:
            return self._noisy_reference.error(noisy.model)
        finally:
            if noisy is not twin:
                noisy.free()

    def _twin(self, plan: Plan) -> Twin:
        """Return a shrunk copy in the precision of the comparison."""
        built = build(self._work.plain, plan, self._work.example_inputs, self.parts)
        return Twin(built, self._reference.precision)

    def takes_other_batches(self, plan: Plan) -> bool:
        """Whether a plan also passes for batches of other sizes."""
        others = self._reference.with_other_batches(self._work.masked)
        twin = self._twin(plan).model
        try:
            return bool(others) and all(x.error(twin) <= x.tolerance for x in others or ())
        except Exception as failure:
            log.debug("speedup: sizes cannot be dynamic: %s", describe(failure))
            return False
