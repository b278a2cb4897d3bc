"""Shrink a masked model, and verify that the result is the same function."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lilliput.errors import NothingToCutError, UnsupportedModelError
from lilliput.frameworks.shrinking import Options, Shrunk
from lilliput.frameworks.torch.attributes import (
    choices,
    find_attributes,
    find_in_module,
    find_remembered,
    held_value,
    less_by_one,
    owners_of,
)
from lilliput.frameworks.torch.build import (
    Parts,
    build,
    build_in_place,
    capture_parts,
    cut_optimizer,
    hand_over,
)
from lilliput.frameworks.torch.caches import find_shortcuts
from lilliput.frameworks.torch.capture import as_inputs, check_copies, copy_model, plain_copy, quiet
from lilliput.frameworks.torch.captured import CapturedModule
from lilliput.frameworks.torch.chance import drawn_from
from lilliput.frameworks.torch.cutting import named_tensors, shapes_of
from lilliput.frameworks.torch.dead import unseen_by_norms, zero_classes, zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.graph import graph_of
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.mask_files import apply_masks, find_masks, put_back
from lilliput.frameworks.torch.norms import narrow_norms
from lilliput.frameworks.torch.perturb import Noise
from lilliput.frameworks.torch.release import (
    check_model,
    check_optimizer,
    find_known_groups,
    find_left_masks,
    find_unready,
    free_copy,
    optimizer_of,
    release,
)
from lilliput.frameworks.torch.rewrite import Edit, find_cause, find_edits, has_casts
from lilliput.frameworks.torch.track import Failure, describe, failing_module
from lilliput.frameworks.torch.verify import Twin, make_references
from lilliput.frameworks.torch.widths import OF_CLASSIFIER, Stale, Widths, find_feature_info, show
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import balance, find_cuts, in_order
from lilliput.graph.dead import Zeros, find_dead, one_left
from lilliput.graph.labels import Flags
from lilliput.graph.plan import TIED, Attributes, Plan
from lilliput.graph.walk import IS_OUTPUT

log = logging.getLogger("lilliput")
_WHY_UNREAD = ("the example inputs never reach", "in evaluation, tables are read in place of")
_ATTEMPTS = 6
_MOST_WIDTHS = 8  # that are tried one by one, if not all of them can be set


RUNS_AT_ONCE = True


def shrink(model: nn.Module, example_inputs: Any, options: Options) -> Shrunk:
    """Cut masked channels out of a model; see :func:`lilliput.speedup.shrink.speedup`."""
    check_model(model)
    masks = None if options.masks is None else find_masks(options.masks, model)
    if not options.inplace:
        model = free_copy(model)
    if masks is None:
        return _shrink(model, example_inputs, options)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    held = {name: parameters[name].detach().clone() for name in masks}
    apply_masks(model, masks)
    try:
        return _shrink(model, example_inputs, options)
    except BaseException:
        put_back(model, held)
        raise


def _shrink(model: nn.Module, example_inputs: Any, options: Options) -> Shrunk:
    optimizer = options.optimizer if options.optimizer is not None else optimizer_of(model)
    if optimizer is not None:
        check_optimizer(optimizer, model)
    work = _Work(model, example_inputs, options.extend_masks)
    source = shapes_of(work.plain)
    plan, error = work.find_plan(options.allow_graph)
    shrunk = work.carry_out(plan, optimizer)
    return Shrunk(
        model=shrunk,
        before=work.plain,
        inputs=example_inputs,
        plan=plan,
        error=error,
        parameters=work.count_parameters(shrunk),
        macs=work.costs(work.groups.count_macs),
        removed=work.removed_units(),
        remembered=work.changed_widths(),
        notes=work.all_notes(),
        source=source,
    )


def zeros_of(model: nn.Module) -> Zeros:
    """Return which slices of a model's parameters are zero, masks applied."""
    return zeros_in(dict(plain_copy(model, share=True).named_parameters(remove_duplicate=False)))


class _Work:
    """One shrinking: the model and its analysis."""

    def __init__(self, model: nn.Module, example_inputs: Any, extend_masks: bool) -> None:
        self.model, self.example_inputs = model, example_inputs
        self.notes: list[str] = []
        self.remembered: Attributes = {}
        self.outdated: Stale = {}
        self._parts: Parts = {}
        self._is_steady = False  # looked at when outputs differ
        check_copies(unwrapped(model), example_inputs)
        self.plain = plain_copy(model, share=not extend_masks)
        self.groups = find_known_groups(model, self.plain, example_inputs)
        if self.groups is None:
            self.groups = find_groups(graph_of(self.plain, example_inputs))
        self.analysis = self.groups.analysis
        self.masked = self._extend() if extend_masks else model
        self.removed = self._find_removed()
        found = find_cuts(self.analysis, self.removed)
        self.cuts = tuple(in_order(self.analysis, self.removed, found))
        self.edits = find_edits(self.analysis, self.removed)
        if not self.cuts:
            raise NothingToCutError(
                f"{find_unready(model)}there is nothing to cut: no channel is zero in all the parameters "
                "that produce, scale or read it. Prune with example_inputs (masks then cover whole groups) "
                "and a sparsity of at least one channel, or allow extend_masks=True; a model that was "
                "shrunk already has nothing left to cut."
            )
        if self.groups.unreached:
            self.notes.append(
                f"{_WHY_UNREAD[bool(find_shortcuts(self.plain, self.groups.unreached))]} "
                f"{', '.join(self.groups.unreached[:4])}"
                f"{' …' if len(self.groups.unreached) > 4 else ''}; that code was neither cut nor checked"
            )
        left = find_left_masks(model)
        if left:
            self.notes.append(f"the zeros of {', '.join(left)} are no longer enforced in training")
        self.noise = Noise(unwrapped(self.masked), self.cuts)
        drawn = drawn_from(self._make_references)
        if drawn:
            self.reference.check_chance(unwrapped(self.masked), drawn)

    def _make_references(self) -> None:
        self.reference, self.elsewhere = make_references(
            unwrapped(self.masked), self.example_inputs, has_casts(self.analysis), self.noise.add
        )

    def _find_removed(self) -> Flags:
        parameters = dict(self.plain.named_parameters(remove_duplicate=False))
        flags = self.groups.flags(one_left(find_dead(self.groups, zeros_in(parameters))))
        flags &= unseen_by_norms(self.analysis, unwrapped(self.masked))
        return balance(self.analysis, flags)

    def _extend(self) -> nn.Module:
        """Extend the masks of channels whose filters are zero; return the model to compare with."""
        tensors = named_tensors(self.plain)
        parameters = dict(self.plain.named_parameters(remove_duplicate=False))
        dead = find_dead(self.groups, zeros_in(parameters), only_outputs=True)
        (before,) = make_references(self.model, self.example_inputs, has_casts=True)
        flags = balance(self.analysis, self.groups.flags(dead))
        zero_classes(self.analysis, flags, tensors)
        masked = copy_model(self.plain)
        for path, narrow in narrow_norms(self.analysis, masked, flags).items():
            set_narrow(masked.get_submodule(path), narrow)
        change = before.error(Twin(copy_model(masked), before.precision).model)
        if change > before.tolerance:
            self.notes.append(
                "masks covered only filters and were extended; this changes the outputs by up to "
                f"{change:.1%} of the largest"
            )
            log.warning("speedup: %s.", self.notes[-1])
        return masked

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
        except (
            Exception
        ) as failure:  # the model does not run on fewer channels; it is seen why later
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
        if (
            why
            and why[0].path
            and not f"{why[0].path}.".startswith(tuple(f"{x}." for x in plan.graphs))
        ):
            failures += why  # in code around the graphs, which does not know their sizes
            return None
        error = self._try(plan, failures)
        if error > self.reference.tolerance:
            return None
        self.notes.insert(0, TIED)
        log.warning("speedup: the shrunk model %s.", TIED)
        return plan, error

    def _takes_other_batches(self, plan: Plan) -> bool:
        others = self.reference.with_other_batches(self.masked)
        twin = self._twin(plan).model
        try:
            return bool(others) and all(x.error(twin) <= x.tolerance for x in others or ())
        except Exception as failure:
            log.debug("speedup: sizes cannot be dynamic: %s", describe(failure))
            return False

    def _alike(self, path: str, edits: list[Edit]) -> set[str]:
        """Return the modules of the same class with the same edits."""
        owners = {x for edit in edits for x in owners_of(edit)}
        cls = type(self.plain.get_submodule(path))
        return {x for x in owners if x and type(self.plain.get_submodule(x)) is cls}

    def _try(self, plan: Plan, failures: list[Failure]) -> float:
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
                reference = self.elsewhere
                error = max(error, self._error_elsewhere(plan, twin))
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

    def _error_elsewhere(self, plan: Plan, twin: Twin) -> float:
        """Return the error with noise on the weights."""
        if twin.keeps_tables():
            twin = self._twin(plan)
        twin.use(self.noise.add_cut)
        return self.elsewhere.error(twin.model)

    def _twin(self, plan: Plan) -> Twin:
        built = build(self.plain, plan, self.example_inputs, self._parts)
        return Twin(built, self.reference.precision)

    def carry_out(self, plan: Plan, optimizer: Any) -> nn.Module:
        """Apply a plan that passed to the user's model."""
        model = unwrapped(self.model)
        modes = {name: module.training for name, module in model.named_modules()}
        parts = capture_parts(self.plain, plan, self.example_inputs, self._parts)
        is_graph = plan.kind == "graph"
        graph = build(self.plain, plan, self.example_inputs, self._parts) if is_graph else None
        for parameter in () if graph is None else graph.parameters():
            parameter.data = parameter.data.clone()  # uncut tensors are shared
        release(model)
        before = named_tensors(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in before.items()}
        if graph is not None:
            if optimizer is not None:
                cut_optimizer(optimizer, before, plan.cuts, shapes)
                hand_over(optimizer, {before[n]: p for n, p in graph.named_parameters()})
            return graph.train(model.training)
        with torch.no_grad():
            for name, parameter in self.plain.named_parameters():
                before[name].copy_(parameter)  # masks may have been extended
        build_in_place(model, plan, parts)
        for name, module in model.named_modules():
            module.training = modes.get(name, model.training)
        if optimizer is not None:
            cut_optimizer(optimizer, before, plan.cuts, shapes)
        return self.model

    def changed_widths(self) -> dict[str, tuple[int, int]]:
        """Return the width attributes of modules, before and after."""
        held = {k: held_value(self.plain.get_submodule(k[0]), k[1]) for k in self.remembered}
        return {".".join(filter(None, k)): (held[k], new) for k, new in self.remembered.items()}

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes for the user, those on the outputs first."""
        notes = self.notes
        if self.outdated:
            listed = show({key: str(value) for key, value in self.outdated.items()})
            notes = [
                *notes,
                f"{listed}: widths from before the cut, read those of the layers instead",
            ]
        return tuple(notes)

    def count_parameters(self, shrunk: nn.Module) -> tuple[int, int]:
        """Return the number of parameters before and after; a graph has only those it reads."""
        before, after = self.costs(self.groups.count_parameters)
        is_graph = isinstance(shrunk, CapturedModule)
        return before, sum(p.numel() for p in shrunk.parameters()) if is_graph else after

    def costs(self, count: Any) -> tuple[int, int]:
        """Return a cost before and after."""
        return count(), count(self._units())

    def _units(self) -> dict[str, Flags]:
        return {g.name: self.removed[g.roots] for g in self.groups.groups}

    def removed_units(self) -> dict[str, tuple[int, int]]:
        """Return how many units of each group were removed, of how many."""
        return {name: (int(x.sum()), len(x)) for name, x in self._units().items() if x.any()}


def _common(edits: list[Edit]) -> str:
    """Return the module whose code has most of the changing numbers, '' for the model itself."""
    owners = [owners_of(edit)[0] for edit in edits if edit.numbers() and owners_of(edit)]
    return max(set(owners), key=lambda x: (owners.count(x), x)) if owners else ""
