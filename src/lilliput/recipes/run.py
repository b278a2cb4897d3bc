"""Run a recipe from start to end, or resume it where an earlier process was stopped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import ConfigError, StateError
from lilliput.recipes.checkpoint import NAME, is_ours_only, locked, read_run, remove_leftovers
from lilliput.recipes.functions import find_functions
from lilliput.recipes.load import load_recipe
from lilliput.recipes.references import importable
from lilliput.recipes.show import Event, Progress, make_progress
from lilliput.recipes.spec import Recipe

if TYPE_CHECKING:
    from lilliput.measure.receipt import Receipt
    from lilliput.recipes.session import Session


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes
    ----------
    receipt : Receipt
        Before → after; ``print`` it.
    report : pathlib.Path
        The HTML report.
    files : list of pathlib.Path
        All files: exported files, the plain weights, receipt and report.
    folder : pathlib.Path
        Their folder. A later recipe can name it as its model.
    """

    receipt: Receipt
    report: Path
    files: list[Path]
    folder: Path

    def __str__(self) -> str:
        return f"{self.receipt}\nreport: {self.report}"


def run(
    recipe: str | os.PathLike[str] | dict[str, Any] | Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool | Progress = True,
    trust: bool = False,
) -> RunResult:
    """Run a recipe in a folder; after each unit of work it can be killed and continued.

    Parameters
    ----------
    recipe : path, dict or Recipe
        The recipe; see :func:`load_recipe`.
    folder : path
        The folder for all files; it must be new or empty, unless ``resume``.
    resume : bool
        Continue where an earlier run in this folder was stopped. On a CPU the resulting files are
        bit-identical to those of an uninterrupted run. It is an error if the recipe, the model,
        the data (its first two batches) or the versions of the packages differ. A finished
        run is not run again.
    progress : bool or callable
        Whether to show a bar (lines without a terminal), or a function that is called with
        each :class:`Event`.
    trust : bool
        Whether a recipe that starts from an earlier run may import that run's model from the folder in
        its ``run.json``, and not only from the working directory and the folder of the recipe.

    Notes
    -----
    Python's, NumPy's and the framework's generators are seeded before each unit, and ``data`` is
    called again for each epoch. A function with its own generator has to seed it equally each time.
    The code of the functions is not compared: a mistake in it can be fixed before continuing.
    """
    asked = load_recipe(recipe)
    place = Path(folder)
    _check_folder(place, resume)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place), importable([asked.folder, Path.cwd()]):
        if (place / NAME).exists() and read_run(place).is_finished:
            return _stored(asked, place)
        show = make_progress(progress)
        try:
            session = _open(asked, place, trust)
            with _same_threads(session):
                _work(session, show)
        finally:
            getattr(show, "close", lambda: None)()
        return stored_result(place)


def stored_result(folder: str | os.PathLike[str]) -> RunResult:
    """Return the result of a finished run from its folder."""
    from lilliput.measure.receipt import Receipt
    from lilliput.recipes.finish import RECEIPT, REPORT, stored_files

    place = Path(folder)
    receipt = Receipt.load(place / RECEIPT)
    return RunResult(receipt, place / REPORT, stored_files(place), place)


def _check_folder(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, expected a folder for the run.")
    if not folder.is_dir():
        return
    has_run = (folder / NAME).exists()
    if has_run and not resume:
        raise StateError(
            f"{folder}: already contains a run; continue it with --resume (resume=True), or choose "
            "another folder."
        )
    if not has_run and not is_ours_only(folder):
        raise StateError(f"{folder}: contains other files; choose a new or an empty folder.")


def _stored(recipe: Recipe, folder: Path) -> RunResult:
    """Return the result of a finished run, if it is one of this recipe."""
    from lilliput.recipes.fingerprints import canonical, refuse_changes

    refuse_changes(read_run(folder).made_from, {"recipe": canonical(recipe)}, folder)
    return stored_result(folder)


def _open(recipe: Recipe, folder: Path, trust: bool) -> Session:
    from lilliput.recipes.opening import resume, start
    from lilliput.recipes.planning import check_model

    functions = find_functions(recipe)
    if (folder / NAME).exists():
        return resume(recipe, folder, functions, trust)
    remove_leftovers(folder, set())
    session = start(recipe, folder, functions, trust)
    check_model(session)  # now, not after hours
    if session.made_from["data"] is None:
        session.log["notes"].append(
            "'data' returned different batches when called again with the same seeds: a resumed run will "
            "not be bit-identical"
        )
    return session


@contextlib.contextmanager
def _same_threads(session: Session) -> Iterator[None]:
    """Use the same number of threads as at the start of the run: the last bits of sums depend on it."""
    before = session.framework.threads()
    session.framework.set_threads(session.threads)
    try:
        yield
    finally:
        session.framework.set_threads(before)


def _work(session: Session, show: Progress) -> None:
    from lilliput.recipes.finish import finish
    from lilliput.recipes.steps import do_unit

    total = len(session.units) + 1
    for unit in session.units[session.done :]:
        show(Event(unit.index + 1, total, unit.text))
        start = time.perf_counter()
        do_unit(session, unit)
        session.save()
        is_measured = unit.kind in ("baseline", "measure")
        metric = session.log["points"][-1]["metric"] if is_measured else None
        show(Event(unit.index + 1, total, unit.text, time.perf_counter() - start, metric))
    show(Event(total, total, "receipt and report"))
    start = time.perf_counter()
    finish(session)
    show(Event(total, total, "receipt and report", time.perf_counter() - start))
