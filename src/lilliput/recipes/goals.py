"""Steps with a budget: ``search``, whose config list later steps use, and ``auto``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lilliput.errors import ConfigError, nearest
from lilliput.export.targets.table import TARGETS
from lilliput.files import write_atomically
from lilliput.recipes.step_specs import FOUND, AutoStep, SearchStep
from lilliput.registry import pruners, quantizers

if TYPE_CHECKING:
    from lilliput.recipes.session import Session

GOALS = ("search", "auto")
FOUND_FILE = "found.json"
Evaluate = Callable[[Any], float]
_BATCHES = 16  # that auto uses before training
_TIMED_SECONDS = 5.0  # for timing one network: its file, its runs and those of the original


@dataclass(frozen=True)
class Forecast:
    """What a step would try: decisions by their kind, config lists, trials, and seconds."""

    layers: dict[int | str, list[str]]
    trials: int
    seconds: float


def check_goal(entry: Mapping[str, Any], verb: str) -> Iterator[tuple[str, str]]:
    """Yield the problems of a step that can be found without a model: the key, and a text."""
    from lilliput.search.budget import parse_budget
    from lilliput.search.strategies.table import STRATEGIES

    key = "budget" if verb == "search" else verb
    if isinstance(entry.get(key), Mapping):
        try:
            parse_budget(entry[key])
        except ConfigError as error:
            yield from ((key, str(problem)) for problem in error.problems)
    known = {*TARGETS, *(target.runtime for target in TARGETS.values())}
    if isinstance(name := entry.get("target"), str) and name not in known:
        yield "target", f"expected one of {', '.join(sorted(known))}.{nearest(name, known)}"
    if verb == "auto":
        return
    if isinstance(name := entry[verb], str) and name not in STRATEGIES:
        listed = ", ".join(STRATEGIES)
        yield verb, f"received {name!r}, expected {listed}.{nearest(name, STRATEGIES)}"
    for key, registry in (("pruner", pruners), ("quantizer", quantizers)):
        if isinstance(name := entry.get(key), str):
            try:
                registry.get(name)
            except ConfigError as error:
                yield key, str(error)


def about_found(step: Any, search: SearchStep | None) -> str:
    """Return why a step cannot use the result of a search, or an empty string."""
    if search is None:
        return "uses 'found', but there is no search step before it."
    asked = search.pruner if step.verb == "prune" else search.quantizer
    registry = pruners if step.verb == "prune" else quantizers
    if registry.get(getattr(step, step.verb)) is not registry.get(asked):
        return (
            f"uses 'found', which was searched for {asked!r}; use the same here, or write "
            f"'{step.verb}r: {getattr(step, step.verb)}' in the search step."
        )
    return ""


def found_rules(session: Session, step: Any) -> Any:
    """Return the config list of a prune or quantize step: its own, or that found by a search."""
    if step.config != FOUND:
        return step.config
    return session.log["found"]["pruning" if step.verb == "prune" else "quantization"]


def is_needed(session: Session, step: Any) -> bool:
    """Whether a prune or quantize step has anything to do according to a search."""
    return step.config != FOUND or bool(found_rules(session, step))


def make_search(session: Session, step: Any, evaluate: Evaluate) -> Any:
    """Return the search of a step, validated with the model."""
    from lilliput.recipes.auto import DEFAULT_RULES
    from lilliput.search.search import Search

    given: dict[str, Any] = {"budget": step.auto} if isinstance(step, AutoStep) else {}
    batches = _BATCHES
    if isinstance(step, SearchStep):
        names = ("budget", "pruner", "quantizer", "recover")
        given = {name: getattr(step, name) for name in names} | {"strategy": step.search}
        batches = step.batches
    session.framework.evaluation_mode(session.model)
    return Search(
        session.model,
        list(DEFAULT_RULES) if step.config is None else step.config,
        data=session.samples(batches),
        **_search_options(session, step, evaluate),
        **given,
    )


def _search_options(session: Session, step: Any, evaluate: Evaluate) -> dict[str, Any]:
    """Return the arguments that :class:`Search` and ``compress`` share."""
    return {
        "evaluate": evaluate,
        "example_inputs": session.inputs,
        "target": step.target,
        "trials": step.trials,
        "networks": step.networks,
        "seed": session.recipe.seed,
        "export_options": step.export_options,
    }


def do_search(session: Session, number: int, evaluate: Evaluate) -> None:
    """Search; the model is not changed. A killed search resumes where it left off."""
    step: Any = session.recipe.steps[number]
    found = make_search(session, step, evaluate).run(session.folder / f"search-{number + 1}")
    session.log["found"] = {
        "config_list": found.config_list,
        "pruning": found.pruning,
        "quantization": found.quantization,
    }
    text = json.dumps(found.config_list, indent=1)
    write_atomically(session.folder / FOUND_FILE, text.encode())
    session.log["notes"] += [f"search: {note}" for note in found.receipt.notes]


def do_auto(session: Session, number: int, evaluate: Evaluate) -> None:
    """Write the file for a budget; the model of the run is not changed."""
    from lilliput.recipes.auto import compress
    from lilliput.search.origin import digests_of_files

    step: Any = session.recipe.steps[number]
    calls = iter(range(10**9))

    def batches() -> Any:
        epoch = next(calls)
        session.seed(f"auto {epoch}")  # the first ones are the same when a killed step is resumed
        return session.functions.batches(epoch)

    session.framework.evaluation_mode(session.model)
    done = compress(
        session.model,
        budget=step.auto,
        data=batches,
        folder=session.folder / f"auto-{number + 1}",
        config_list=step.config,
        epochs=step.epochs,
        hours=step.hours,
        **_search_options(session, step, evaluate),
    )
    names = digests_of_files(done.path.parent, done.path.stem)
    for name in sorted(names, key=lambda name: name == done.path.name):  # the main file last
        write_atomically(session.folder / name, (done.path.parent / name).read_bytes())
    beside = [name for name in names if name != done.path.name]
    export = {"runtimes": {}, **done.export, "path": done.path.name, "beside": beside}
    session.log["exports"].append(export)
    session.log["notes"] += [
        *done.receipt.notes,
        f"{done.path.name} was written by auto; the weights of the run are those before that step",
    ]


def forecast(session: Session, number: int, evaluate: Evaluate) -> Forecast:
    """Estimate a step's trials and duration, by creating and evaluating one network."""
    step: Any = session.recipe.steps[number]
    search = make_search(session, step, evaluate)
    layers: dict[int | str, list[str]] = {}
    for decision in search.space.decisions:
        layers.setdefault(f"{decision.key} of", []).extend(decision.layers)
    start = time.perf_counter()
    strongest = tuple(n - 1 for n in search.space.sizes)
    evaluate(search.maker().order(strongest).make().model)
    seconds = time.perf_counter() - start
    trials = min(step.trials, search.space.count)
    timed = step.networks * _TIMED_SECONDS if "latency" in search.limits else 0.0
    return Forecast(layers, trials, trials * seconds + timed)
