"""Search for a plan that passes: the user's own module if it can be cut, otherwise captured graphs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.attributes import (
    choices,
    find_attributes,
    find_in_module,
    find_remembered,
    held_value,
    less_by_one,
    owners_of,
)
from lilliput.frameworks.torch.build import build
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.masked_model import MaskedModel
from lilliput.frameworks.torch.rewrite import Edit
from lilliput.frameworks.torch.track import Failure, describe
from lilliput.frameworks.torch.trials import Trials
from lilliput.frameworks.torch.widths import OF_CLASSIFIER, Stale, Widths, find_feature_info
from lilliput.graph.plan import TIED, Attributes, Plan
from lilliput.graph.walk import IS_OUTPUT

log = logging.getLogger("lilliput")
_ATTEMPTS = 6
_MOST_WIDTHS = 8  # that are tried one by one, if not all of them can be set


@dataclass(frozen=True, eq=False)
class Found:
    """A plan that passes.

    Parameters
    ----------
    plan : Plan
        The plan.
    error : float
        The error of its outputs.
    remembered : dict
        Those of its attributes that modules only remember, and do not compute with.
    outdated : dict
        Widths from before the cut that modules keep, since no new value is certain.
    notes : list of str
        Notes for the user.
    """

    plan: Plan
    error: float
    remembered: Attributes
    outdated: Stale
    notes: list[str]


class PlanSearch:
    """The search for a plan, from the simplest to the last resort."""

    def __init__(self, work: MaskedModel, trials: Trials) -> None:
        self.work, self.trials = work, trials
        self.plain, self.cuts, self.edits = work.plain, work.cuts, work.edits
        self.remembered: Attributes = {}
        self.outdated: Stale = {}

    def find(self, allow_graph: bool) -> Found:
        """Return the first plan that passes, preferring the user's own module."""
        attributes = find_attributes(self.plain, self.edits)
        failures: list[Failure] = []
        found, notes = self._find_in_own_code(attributes, failures), list[str]()
        if found is None:
            why = failures[0]
            if not allow_graph:
                raise UnsupportedModelError(
                    f"the model's own code cannot run on fewer channels: {why}"
                )
            found = self._find_with_graphs(attributes, failures)
            notes = [
                f"captured, since its own code cannot run on fewer channels: {why}",
                "captured code no longer does what it does only in training (dropout in fused attention, "
                "stochastic depth), and batch norms in it all follow train()",
            ]
        return Found(*found, self.remembered, self.outdated, notes)

    # -- the user's own code, with other sizes in its attributes -------------------------------------

    def _find_in_own_code(
        self, attributes: Attributes, failures: list[Failure]
    ) -> tuple[Plan, float] | None:
        """Return a plan without graphs, or None after adding to ``failures`` why each one failed."""
        candidates = choices(self.plain, attributes, find_remembered(self.plain, self.cuts))
        if not candidates[0] and (found := self._try_with_widths(Plan(self.cuts, {}))):
            return found
        self.outdated = {}
        while candidates:
            plan = Plan(self.cuts, candidates.pop(0))
            outcome = self.trials.run(plan)
            if not isinstance(outcome, Failure):
                return self._with_widths(*self._without_needless(plan, outcome))
            failures.append(outcome)
            if len(failures) == 1:
                own = find_in_module(self.plain, self.cuts, outcome.path)
                is_more = any(plan.attributes.get(key) != value for key, value in own.items())
                candidates[:0] = [{**plan.attributes, **own}] if is_more else []
        return None

    def _without_needless(self, plan: Plan, error: float) -> tuple[Plan, float]:
        """Return a plan without attributes that only happen to equal a number that changes."""
        for fewer in less_by_one(plan.attributes, self.plain):
            kept = {k: v for k, v in plan.attributes.items() if k in fewer}
            if len(kept) < len(plan.attributes):
                trial = replace(plan, attributes=kept)
                outcome = self.trials.run(trial)
                if not isinstance(outcome, Failure):
                    plan, error = trial, outcome
        return plan, error

    # -- widths that modules remember ----------------------------------------------------------------

    def _try_with_widths(self, plan: Plan) -> tuple[Plan, float] | None:
        """Return a plan that sets no attribute but widths, if one check finds all of it right."""
        try:
            found = self._find_widths(plan)
        except Exception as failure:  # it does not run on fewer channels, which is explained later
            log.debug("speedup: no widths: %s", describe(failure))
            return None
        if not found:
            return None
        trial = replace(plan, attributes=found)
        outcome = self.trials.run(trial)
        if isinstance(outcome, Failure):
            return None
        self.remembered |= found
        return trial, outcome

    def _with_widths(self, plan: Plan, error: float) -> tuple[Plan, float]:
        """Return a plan that also sets widths stored as attributes, if they are certain."""
        if plan.kind == "graph":
            return plan, error
        found = self._find_widths(plan)
        names = sorted({name for _, name in found})
        left = dict(found)
        for chosen in [names, *([name] for name in names[:_MOST_WIDTHS] if len(names) > 1)]:
            new = {k: v for k, v in left.items() if k[1] in chosen}
            trial = replace(plan, attributes={**plan.attributes, **new})
            is_right = bool(new) and not isinstance(self.trials.run(trial), Failure)
            if is_right:
                plan = trial
                self.remembered |= new
            # A number used in the code is right for it, but not for a new classifier.
            if is_right or (len(chosen) == 1 and chosen[0] not in OF_CLASSIFIER):
                left = {k: v for k, v in left.items() if k not in new}
        self.outdated |= {k: held_value(self.plain.get_submodule(k[0]), k[1]) for k in left}
        return plan, error

    def _find_widths(self, plan: Plan) -> Attributes:
        """Return the widths that modules remember, besides the attributes of a plan; note stale ones."""
        known = {(path, name.partition(".")[0]) for path, name in plan.attributes}
        inside = tuple(f"{x}." for x in plan.graphs)
        outputs = {x.tensor: x.dim for x in self.work.groups.pinned if x.reason == IS_OUTPUT}
        found, self.outdated = Widths(self.plain, plan.cuts, outputs).find(
            lambda key: (
                (key[0], key[1].partition(".")[0]) in known or f"{key[0]}.".startswith(inside)
            )
        )
        return found | find_feature_info(
            self.plain,
            lambda: build(self.plain, plan, self.work.example_inputs, self.trials.parts),
            self._run,
        )

    def _run(self, model: nn.Module) -> None:
        args, kwargs = as_inputs(self.work.example_inputs)
        with quiet(), torch.no_grad():
            model(*args, **kwargs)

    # -- captured graphs in place of modules ---------------------------------------------------------

    def _find_with_graphs(
        self, attributes: Attributes, failures: list[Failure]
    ) -> tuple[Plan, float]:
        """Return a plan with as few graphs as possible, or raise."""
        for plan in self._plans_with_graphs(attributes, failures):
            found = self._try_graphs(plan, failures)
            if found is not None:
                return self._with_widths(*found)
        raise UnsupportedModelError(
            f"no shrunk form of the model reproduces the outputs of the masked one: {failures[-1]}"
        )

    def _plans_with_graphs(self, attributes: Attributes, failures: list[Failure]) -> Iterator[Plan]:
        """Yield plans that replace more and more of the model by captured graphs.

        The module in which the last trial failed is replaced next.
        """
        graphs: set[str] = set()
        path = failures[0].path or _common(self.edits)
        for _ in range(_ATTEMPTS):
            if not path:
                break
            graphs = {x for x in graphs if not x.startswith(f"{path}.")} | {path}
            graphs |= self._alike(path)
            inside = tuple(f"{x}." for x in graphs)
            others = {k: v for k, v in attributes.items() if not f"{k[0]}.".startswith(inside)}
            yield Plan(self.cuts, others, tuple(sorted(graphs)))
            path = failures[-1].path
            while path in graphs:  # the graph runs, but modules around it do not
                path = path.rpartition(".")[0]
        yield Plan(self.cuts, {}, ("",))

    def _try_graphs(self, plan: Plan, failures: list[Failure]) -> tuple[Plan, float] | None:
        """Return a plan that passes and its error, preferably one that accepts any batch size."""
        dynamic = replace(plan, any_size=True)
        outcome = self.trials.run(dynamic)
        if isinstance(outcome, Failure):
            inside = tuple(f"{x}." for x in plan.graphs)
            if outcome.path and not f"{outcome.path}.".startswith(inside):
                failures.append(
                    outcome
                )  # in code around the graphs, which does not know their sizes
                return None
        elif self.trials.takes_other_batches(dynamic):
            return dynamic, outcome
        outcome = self.trials.run(plan)
        if isinstance(outcome, Failure):
            failures.append(outcome)
            return None
        log.warning("speedup: the shrunk model %s.", TIED)
        return plan, outcome

    def _alike(self, path: str) -> set[str]:
        """Return the modules of the same class with the same edits."""
        owners = {x for edit in self.edits for x in owners_of(edit)}
        cls = type(self.plain.get_submodule(path))
        return {x for x in owners if x and type(self.plain.get_submodule(x)) is cls}


def _common(edits: list[Edit]) -> str:
    """Return the module whose code has most of the changing numbers, '' for the model itself."""
    owners = [owners_of(edit)[0] for edit in edits if edit.numbers() and owners_of(edit)]
    return max(set(owners), key=lambda x: (owners.count(x), x)) if owners else ""
