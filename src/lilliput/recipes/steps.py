"""The work of each unit on a session; each depends only on the preceding checkpoint."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from lilliput.export.summary import cpu_lines
from lilliput.frameworks.looping import Epoch
from lilliput.recipes.arguments import algorithm_of
from lilliput.recipes.checkpoint import CompressorEntry, FactorizerEntry
from lilliput.recipes.framework import export, recover, shrink
from lilliput.recipes.goals import do_auto, do_search, found_rules, is_needed
from lilliput.recipes.session import Session
from lilliput.recipes.step_specs import epochs_of
from lilliput.recipes.teaching import make_distiller
from lilliput.recipes.units import Unit, title_of

_CALIBRATION = 16  # batches, unless the step sets another number


def do_unit(session: Session, unit: Unit) -> None:
    """Do one unit of work; the caller writes the checkpoint."""
    session.seed(unit.index)
    _DO[unit.kind](session, unit)
    session.done = unit.index + 1


def _baseline(session: Session, unit: Unit) -> None:
    from lilliput.report.snapshot import snapshot

    session.log["before"] = _measured(session, session.model, "trained model")
    session.log["after"] = session.log["before"]
    taken = snapshot(session.model, session.inputs, timing=True)
    session.log["snapshot"] = taken.model_dump(mode="json")
    _add_point(session, "trained model", session.log["before"])


def _set_up(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    rules = found_rules(session, step)
    if not is_needed(session, step):
        note = f"{title_of(step)}: skipped, since the search found that no layer needs it"
        session.log["notes"].append(note)
        return
    session.framework.evaluation_mode(session.model)
    session.attach(
        CompressorEntry(
            verb=step.verb,
            algorithm=getattr(step, step.verb),
            config=rules,
            options=step.options,
        )
    )


def _own_compressor(session: Session, step: Any) -> Any:
    """Return the compressor that a step has attached, or None."""
    is_there = step.verb in ("prune", "quantize") and is_needed(session, step)
    return session.compressors[-1] if is_there else None


def _calibrate(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    batches = islice(session.functions.batches(), step.batches or _CALIBRATION)
    session.framework.evaluation_mode(session.model)
    compressor = _own_compressor(session, step)
    if compressor is not None:
        session.framework.calibrate(compressor, batches, session.functions)


def _epoch(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    session.start_training(unit.step)
    current = _own_compressor(session, step)
    epochs = epochs_of(step)
    distiller = make_distiller(session, unit.step)
    if distiller is not None:
        distiller.compress()
        session.seed(unit.index)  # creating a teacher may have drawn random numbers
    batches = session.functions.batches(unit.epoch)
    parts = (session.model, session.optimizer, batches, session.functions, current)
    try:
        session.framework.train(Epoch(*parts, unit.epoch, epochs, distiller))
    finally:
        if distiller is not None:
            distiller.strip()
    if unit.epoch == epochs - 1:
        if step.verb == "prune" and current is not None:
            current.harden()  # from here on, the computed weights are those of the model
        session.stop_training()


def _factorize(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    session.framework.evaluation_mode(session.model)
    factorizer = algorithm_of("factorize", step.factorize)(session.model, step.config)
    session.model = factorizer.compress()
    result = factorizer.result
    session.log["notes"] += [f"{k}: not factorized, {why}" for k, why in result.left.items()]
    if result.ranks:
        rules, before = result.config_list(), len(session.entry.shrunk)
        done = FactorizerEntry(algorithm=step.factorize, config=rules, shrunk=before)
        session.entry = session.entry.model_copy(
            update={"factorized": [*session.entry.factorized, done]}
        )


def _recover(session: Session, unit: Unit) -> None:
    from lilliput.recipes.opening import make_original

    step = session.step_of(unit)
    samples = session.samples(step.batches)
    session.framework.evaluation_mode(session.model)
    original = None if step.recover == "recalibrate" else make_original(session)
    recover(session.framework, session.model, samples, step.recover, original)


def _speedup(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    name = f"shrunk-{len(session.entry.shrunk)}"
    target = session.folder / name
    shutil.rmtree(target, ignore_errors=True)  # leftovers of a killed run
    session.framework.evaluation_mode(session.model)
    options = step.speedup.model_dump()
    result = shrink(session.framework, session.model, session.inputs, options, target)
    session.model = result.model
    session.compressors = []
    session.entry = session.entry.model_copy(
        update={"compressors": [], "shrunk": [*session.entry.shrunk, name]}
    )
    session.log["speedup"] = str(result)


def _export(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    session.framework.evaluation_mode(session.model)
    samples = session.samples(_CALIBRATION)  # calibration data must not saturate
    session.seed(unit.index)
    path = session.folder / step.file
    result = export(
        session.framework, session.model, step.export, path, session.inputs, samples, step.options
    )
    session.log["exports"].append({**result.to_dict(), "path": step.file})
    session.log["notes"] += cpu_lines(result)


def _analyze(session: Session, unit: Unit) -> None:
    from lilliput.pruning.sensitivity_analysis import SensitivityAnalysis

    step = session.step_of(unit)
    session.framework.evaluation_mode(session.model)
    scan = SensitivityAnalysis(
        session.model,
        lambda model: evaluate(session, model),
        step.sparsities,
        step.analyze,
        config_list=step.config,
        example_inputs=session.inputs,
    )
    curves = scan.analysis()
    session.log["sensitivity"] = [
        {
            "layer": layer,
            "baseline": scan.ori_metric,
            "points": [[x, y] for x, y in curve.items() if math.isfinite(y)],
        }
        for layer, curve in curves.items()
    ]


def _search(session: Session, unit: Unit) -> None:
    do_search(session, unit.step, partial(evaluate, session))


def _auto(session: Session, unit: Unit) -> None:
    do_auto(session, unit.step, partial(evaluate, session))


def _measure(session: Session, unit: Unit) -> None:
    step = session.step_of(unit)
    is_file = step.verb in ("export", "auto")
    name = session.log["exports"][-1]["path"] if is_file else f"after {title_of(step)}"
    subject = session.folder / name if is_file else session.model
    figures = _measured(session, subject, name)
    if step.verb == "export":  # a file does not contain its origin
        known = session.log["after"]
        figures |= {k: known[k] for k in ("parameters", "nonzeros", "macs") if figures[k] is None}
    session.log["after"] = figures
    _add_point(session, name, figures)


def evaluate(session: Session, model: Any) -> float:
    """Return the metric of a model or an executed file, always with the same seed."""
    from lilliput.measure.timing import run_evaluation

    function: Any = session.functions.evaluate
    session.seed("evaluate")
    if model is session.model:
        session.framework.evaluation_mode(model)
    return run_evaluation(function, model)


def _measured(session: Session, subject: Any, name: str) -> dict[str, Any]:
    from lilliput.report.measure import measure

    has_metric = session.functions.evaluate is not None
    metric = (lambda model: evaluate(session, model)) if has_metric else None
    figures = measure(subject, session.inputs, evaluate=metric, name=name)
    if figures.metric is not None and not math.isfinite(figures.metric):
        session.log["notes"].append(f"{name}: evaluate returned {figures.metric}")
    return figures.to_dict()


def _add_point(session: Session, name: str, figures: dict[str, Any]) -> None:
    """Record one point of size, cost and metric, for the report."""
    all_of_them = session.log["before"]["parameters"]
    kept = figures["nonzeros"]
    sparsity = None if kept is None or not all_of_them else 1 - kept / all_of_them
    point = {key: figures[key] for key in ("bytes", "macs", "p50", "metric")}
    session.log["points"].append({"name": name, **point, "sparsity": sparsity})


_DO: dict[str, Callable[[Session, Unit], None]] = {
    "baseline": _baseline,
    "set up": _set_up,
    "calibrate": _calibrate,
    "epoch": _epoch,
    "factorize": _factorize,
    "recover": _recover,
    "speedup": _speedup,
    "export": _export,
    "analyze": _analyze,
    "search": _search,
    "auto": _auto,
    "measure": _measure,
}
