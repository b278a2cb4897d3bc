"""Start a run, or rebuild one exactly from its checkpoint."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.core.state import CompressionState
from lilliput.errors import StateError
from lilliput.frameworks import backend_of
from lilliput.packing import unpack
from lilliput.recipes import fingerprints
from lilliput.recipes.arguments import algorithm_of, make_compressor
from lilliput.recipes.checkpoint import Checkpoint, CompressorEntry, ModelEntry, inside
from lilliput.recipes.framework import loop_named, shrink_again
from lilliput.recipes.functions import Functions, earlier_run
from lilliput.recipes.needs import check_installed
from lilliput.recipes.references import importable, resolve_function
from lilliput.recipes.session import Session
from lilliput.recipes.spec import Recipe
from lilliput.recipes.trust import factory_folders
from lilliput.recipes.units import seed_for


@dataclass(frozen=True)
class LoadedRun:
    """The result of a run: the model, with the compressors that are still attached to it.

    Attributes
    ----------
    model : object
        The model.
    compressors : list
        Pruners and quantizers attached to it; empty for a plain model.
    inputs : object
        Its inputs.
    """

    model: Any
    compressors: list[Any]
    inputs: Any


def load_run(folder: str | os.PathLike[str], *, trust: bool = False) -> LoadedRun:
    """Build the final model of a finished run; its factory must be importable.

    Parameters
    ----------
    folder : path
        The folder of the run. Loading it calls the factory named in its ``run.json``.
    trust : bool
        Whether the factory may be imported from its folder at the time of the run. Otherwise,
        modules are found by Python, and in the working directory.
    """
    place = Path(folder)
    held = _finished(place)
    model, compressors = build(held, place, trust=trust)
    load_states(held, model, compressors)
    return LoadedRun(model, compressors, _inputs(held, model))


def start(recipe: Recipe, folder: Path, functions: Functions, trust: bool = False) -> Session:
    """Return a session at the start of a run; see :func:`load_run` for ``trust``."""
    session = Session(recipe, folder, functions)
    origin, began = earlier_run(recipe), time.perf_counter()
    if origin is None:
        session.model = make_model(functions.factory, recipe.seed)
        name: Any = backend_of(session.model).name
        session.framework = loop_named(name)
        session.entry = ModelEntry(
            framework=name, factory=recipe.model, folder=str(recipe.folder), seed=recipe.seed
        )
    else:
        held = _take_result(session, origin, trust)
        for shrunk in held.model.shrunk:
            shutil.copytree(inside(origin, shrunk), folder / shrunk)
    session.log["factory_seconds"] = round(time.perf_counter() - began, 1)
    check_installed(recipe, session.framework.name)
    session.take_inputs()
    session.threads = session.framework.threads()
    session.made_from = session.fingerprint()
    return session


def resume(recipe: Recipe, folder: Path, functions: Functions, trust: bool = False) -> Session:
    """Return a session at the last checkpoint of a run; raise if inputs changed."""
    held = Checkpoint.load(folder)
    now: dict[str, Any] = {
        "recipe": fingerprints.canonical(recipe),
        "versions": fingerprints.of_versions(held.model.framework),
    }
    fingerprints.refuse_changes(held.made_from, now, folder)
    session = Session(recipe, folder, functions)
    session.framework = loop_named(held.model.framework)
    origin = earlier_run(recipe)
    if origin is None:
        session.model = make_model(functions.factory, held.model.seed)
    else:
        _take_result(session, origin, trust)
    check_installed(recipe, session.framework.name)
    session.take_inputs()
    fingerprints.refuse_changes(held.made_from, session.fingerprint(), folder)
    session.made_from, session.threads = held.made_from, held.threads
    session.done, session.log, session.entry = held.done, held.log, held.model
    fresh = session.model if origin is None else None
    session.model, session.compressors = build(held, folder, fresh, trust)
    session.inputs = _inputs(held, session.model)
    if held.optimizer is not None:
        session.start_training(session.units[held.done].step)
        load_states(held, session.model, session.compressors, session.optimizer)
    else:
        load_states(held, session.model, session.compressors)
    return session


def build(
    held: Checkpoint, folder: Path, fresh: Any = None, trust: bool = False
) -> tuple[Any, list[Any]]:
    """Return the model of a checkpoint and its compressors, without their learned state.

    Parameters
    ----------
    held : Checkpoint
        The checkpoint.
    folder : pathlib.Path
        The folder of the shrinking plans.
    fresh : object, optional
        A model from the factory, if it exists already.
    trust : bool
        Whether code may be imported from the folder in the checkpoint.
    """
    framework, entry = loop_named(held.model.framework), held.model
    if fresh is None:
        folders = factory_folders(entry, folder, trust)
        with importable([*folders, Path.cwd()]):
            fresh = make_model(resolve_function(entry.factory, "model", folders), entry.seed)
    model, compressors = fresh, []
    for number in range(len(entry.shrunk) + 1):
        for done in entry.factorized:
            if done.shrunk == number:
                model = algorithm_of("factorize", done.algorithm)(model, done.config).lay_out()
        if number < len(entry.shrunk):
            model = shrink_again(framework, model, inside(folder, entry.shrunk[number]))
    inputs = _inputs(held, model)
    framework.evaluation_mode(model)
    for part in entry.compressors:
        compressors.append(make_compressor(part, model, inputs))
        compressors[-1].compress()
    return model, compressors


def load_states(
    held: Checkpoint, model: Any, compressors: list[Any], optimizer: Any = None
) -> None:
    """Restore the state of the model, the optimizer and the compressors."""
    framework = loop_named(held.model.framework)
    framework.load(model, _within(held.tensors, "model/"))
    if optimizer is not None:
        framework.load_optimizer(optimizer, unpack(held.optimizer, held.tensors))
    for number, (entry, compressor) in enumerate(
        zip(held.model.compressors, compressors, strict=True)
    ):
        compressor.load_state(_state(entry, number, held))


def make_model(factory: Any, seed: int) -> Any:
    """Call the factory, with all generators seeded."""
    fingerprints.seed_python(seed_for(seed, "model"))
    for name in ("torch", "keras"):
        if name in sys.modules:
            loop_named(name).seed(seed_for(seed, "model"))
    return factory()


def make_original(session: Session) -> Any:
    """Return the initial model of a run, created again."""
    origin = earlier_run(session.recipe)
    if origin is None:
        return make_model(session.functions.factory, session.entry.seed)
    held = _finished(origin)
    model, compressors = build(held, origin, trust=True)  # trusted when the run was opened
    load_states(held, model, compressors)
    return model


def _take_result(session: Session, origin: Path, trust: bool) -> Checkpoint:
    """Let a session start with the result of an earlier run."""
    held = _finished(origin)
    session.framework = loop_named(held.model.framework)
    session.model, session.compressors = build(held, origin, trust=trust)
    load_states(held, session.model, session.compressors)
    session.entry = held.model
    session.inputs = _inputs(held, session.model)
    return held


def _inputs(held: Checkpoint, model: Any) -> Any:
    """Return the inputs of the model of a checkpoint."""
    framework = loop_named(held.model.framework)
    return framework.place(unpack(held.inputs, held.tensors), model)


def _finished(folder: Path) -> Checkpoint:
    held = Checkpoint.load(folder)
    if not held.is_finished:
        raise StateError(
            f"{folder}: this run is not finished; continue it first: lilliput run … --resume."
        )
    return held


def _state(entry: CompressorEntry, number: int, held: Checkpoint) -> CompressionState:
    """Return the state of a compressor."""
    tensors: dict[str, dict[str, Any]] = {}
    for path, tensor in _within(held.tensors, f"compressor {number}/").items():
        layer, _, key = path.rpartition("::")
        tensors.setdefault(layer, {})[key] = tensor
    known: dict[str, Any] = entry.state
    return CompressionState(
        known["class"], known["layers"], tensors, known["progress"], held.model.framework
    )


def _within(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
