"""Search for a plan that passes: the user's own module if it can be cut, otherwise captured graphs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
from lilliput.frameworks.torch.rewrite import Edit
from lilliput.frameworks.torch.track import Failure, describe
from lilliput.frameworks.torch.trials import Trials
from lilliput.frameworks.torch.widths import OF_CLASSIFIER, Stale, Widths, find_feature_info
from lilliput.graph.cuts import Cut
from lilliput.graph.plan import TIED, Attributes, Plan
from lilliput.graph.walk import IS_OUTPUT

log = logging.getLogger("lilliput")
_ATTEMPTS = 6
_MOST_WIDTHS = 8  # that are tried one by one, if not all of them can be set


class Plans(Trials):
    """The plans for cutting a model, from the simplest to the last resort."""

    cuts: tuple[Cut, ...]
    groups: Any

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.remembered: Attributes = {}
        self.outdated: Stale = {}

    def find_plan(self, allow_graph: bool) -> tuple[Plan, float]:
        """Return the first plan that passes the check, preferring the user's own module."""
        edits = self.edits
        attributes = find_attributes(self.plain, edits)
        failures: list[Failure] = []
        remembered = find_remembered(self.plain, self.cuts)
        left = choices(self.plain, attributes, remembered)
        if not left[0] and (found := self._try_with_widths(Plan(self.cuts, {}))):
            return found
        self.outdated = {}
        while left:
            plan = Plan(self.cuts, left.pop(0))
            error = self._try(plan, failures)
            if error <= self.reference.tolerance:
                return self._with_widths(*self._without_needless(plan, error))
            if len(failures) == 1:
                own = find_in_module(self.plain, self.cuts, failures[0].path)
                is_more = any(plan.attributes.get(key) != value for key, value in own.items())
                left[:0] = [{**plan.attributes, **own}] if is_more else []
        why = failures[0]
        if not allow_graph:
            raise UnsupportedModelError(f"the model's own code cannot run on fewer channels: {why}")
        for plan in self._with_graphs(attributes, edits, failures):
            found = self._try_graphs(plan, failures)
            if found is not None:
                self.notes.append(
                    f"captured, since its own code cannot run on fewer channels: {why}"
                )
                self.notes.append(
                    "captured code no longer does what it does only in training (dropout in fused attention, "
                    "stochastic depth), and batch norms in it all follow train()"
                )
                return self._with_widths(*found)
        raise UnsupportedModelError(
            f"no shrunk form of the model reproduces the outputs of the masked one: {failures[-1]}"
        )

    def _without_needless(self, plan: Plan, error: float) -> tuple[Plan, float]:
        """Return a plan without attributes that only happen to equal a number that changes."""
        for fewer in less_by_one(plan.attributes, self.plain):
            kept = {k: v for k, v in plan.attributes.items() if k in fewer}
            if len(kept) < len(plan.attributes):
                trial = replace(plan, attributes=kept)
                found = self._try(trial, [])
                if found <= self.reference.tolerance:
                    plan, error = trial, found
        return plan, error

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
        error = self._try(trial, [])
        if error > self.reference.tolerance:
            return None
        self.remembered |= found
        return trial, error

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
            is_right = bool(new) and self._try(trial, []) <= self.reference.tolerance
            if is_right:
                plan = trial
                self.remembered |= new
            # A number used in the code is right for it, but not for a new classifier.
            if is_right or (len(chosen) == 1 and chosen[0] not in OF_CLASSIFIER):
                left = {k: v for k, v in left.items() if k not in new}
        self.outdated |= {k: held_value(self.plain.get_submodule(k[0]), k[1]) for k in left}
        return plan, error

    def _find_widths(self, plan: Plan) -> Attributes:
        """Return the widths that modules remember, beside the attributes of a plan; note stale ones."""
        known = {(path, name.partition(".")[0]) for path, name in plan.attributes}
        inside = tuple(f"{x}." for x in plan.graphs)
        outputs = {x.tensor: x.dim for x in self.groups.pinned if x.reason == IS_OUTPUT}
        found, self.outdated = Widths(self.plain, plan.cuts, outputs).find(
            lambda key: (
                (key[0], key[1].partition(".")[0]) in known or f"{key[0]}.".startswith(inside)
            )
        )
        return found | find_feature_info(
            self.plain,
            lambda: build(self.plain, plan, self.example_inputs, self._parts),
            self._run,
        )

    def _run(self, model: nn.Module) -> None:
        args, kwargs = as_inputs(self.example_inputs)
        with quiet(), torch.no_grad():
            model(*args, **kwargs)

    def _with_graphs(
        self, attributes: Attributes, edits: list[Edit], failures: list[Failure]
    ) -> Iterator[Plan]:
        """Yield plans that replace more and more of the model by captured graphs."""
        graphs: set[str] = set()
        path = failures[0].path or _common(edits)
        for _ in range(_ATTEMPTS):
            if not path:
                break
            graphs = {x for x in graphs if not x.startswith(f"{path}.")} | {path}
            graphs |= self._alike(path, edits)
            inside = tuple(f"{x}." for x in graphs)
            others = {k: v for k, v in attributes.items() if not f"{k[0]}.".startswith(inside)}
            yield Plan(self.cuts, others, tuple(sorted(graphs)))
            path = failures[-1].path
            while path in graphs:  # the graph runs, but modules around it do not
                path = path.rpartition(".")[0]
        yield Plan(self.cuts, {}, ("",))

    def _try_graphs(self, plan: Plan, failures: list[Failure]) -> tuple[Plan, float] | None:
        """Return a plan that passes and its error, preferably one that accepts any batch size."""
        open_, why = replace(plan, any_size=True), list[Failure]()
        error = self._try(open_, why)
        if error <= self.reference.tolerance and self._takes_other_batches(open_):
            return open_, error
        inside = tuple(f"{x}." for x in plan.graphs)
        if why and why[0].path and not f"{why[0].path}.".startswith(inside):
            failures += why  # in code around the graphs, which does not know their sizes
            return None
        error = self._try(plan, failures)
        if error > self.reference.tolerance:
            return None
        self.notes.insert(0, TIED)
        log.warning("speedup: the shrunk model %s.", TIED)
        return plan, error

    def _alike(self, path: str, edits: list[Edit]) -> set[str]:
        """Return the modules of the same class with the same edits."""
        owners = {x for edit in edits for x in owners_of(edit)}
        cls = type(self.plain.get_submodule(path))
        return {x for x in owners if x and type(self.plain.get_submodule(x)) is cls}


def _common(edits: list[Edit]) -> str:
    """Return the module whose code has most of the changing numbers, '' for the model itself."""
    owners = [owners_of(edit)[0] for edit in edits if edit.numbers() and owners_of(edit)]
    return max(set(owners), key=lambda x: (owners.count(x), x)) if owners else ""
