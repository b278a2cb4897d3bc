"""The end of a run: the plain model, the receipt and the report."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import ExportError, LilliputError, StageError, StateError
from lilliput.export.targets.table import target_for
from lilliput.recipes.checkpoint import inside, read_run
from lilliput.recipes.fingerprints import canonical
from lilliput.recipes.framework import export
from lilliput.recipes.goals import FOUND_FILE
from lilliput.recipes.opening import make_original
from lilliput.recipes.session import Session

if TYPE_CHECKING:
    from lilliput.measure.receipt import Figures, Receipt

RECEIPT, REPORT, COMPACT = "receipt.json", "report.html", "model.lil"
_QUICK = 10.0  # seconds that recreating the original model may take


def finish(session: Session) -> None:
    """Write all remaining files of a run; repeating it writes the same."""
    session.framework.evaluation_mode(session.model)
    written = session.framework.write_model(session.model, session.compressors, session.folder)
    small = _write_compact(session) if session.recipe.compact else None
    receipt = _receipt(session)
    if small is not None:
        receipt = replace(receipt, after=replace(receipt.after, coded=small.stat().st_size))
    receipt.save(session.folder / RECEIPT)
    _write_report(session, receipt)
    exported = [x for export in session.log["exports"] for x in (export["path"], *export["beside"])]
    names = [written.name, *([] if small is None else [small.name])]
    names += [FOUND_FILE] if "found" in session.log else []
    session.log["files"] = [*exported, *names, RECEIPT, REPORT, "report.json"]
    session.is_finished = True
    session.save()


def _write_compact(session: Session) -> Path | None:
    """Write the weights as a compact file; None, with a note, if it cannot contain the model."""
    from lilliput.compact.saving import save

    path = session.folder / COMPACT
    try:
        save(session.model, path, compact=True)
    except (ExportError, StageError, StateError) as error:
        note = f"no compact file: {error}"
        session.log["notes"] = [*(x for x in session.log["notes"] if x != note), note]
        return None
    return path


def stored_files(folder: Path) -> list[Path]:
    """Return the files that a finished run has written."""
    names: Any = read_run(folder).log.get("files", [])
    gone = [name for name in names if not inside(folder, name).is_file()]
    if gone:
        raise StateError(
            f"{folder}: the run is finished, but {gone[0]} is missing; run the recipe in another folder."
        )
    return [folder / name for name in names]


def _receipt(session: Session) -> Receipt:
    from lilliput.measure.receipt import Figures, take_receipt

    log = session.log
    before, after = (Figures.from_dict(log[x]) for x in ("before", "after"))
    before, after, notes = _timed_together(session, before, after)
    return take_receipt(
        before,
        after,
        metric_name=_metric_name(session.recipe.evaluate),
        max_difference=_largest_difference(session),
        notes=(*log["notes"], *_about_simulation(session), *notes),
    )


def _metric_name(function: str | None) -> str:
    """Return the name of the metric: that of the function, if it is descriptive."""
    name = "" if function is None else re.split(r"[:.]", function)[-1]
    return "metric" if name in ("", "evaluate", "evaluation", "eval_model") else name


def _about_simulation(session: Session) -> list[str]:
    """Add a note that simulated rounding is not integer arithmetic."""
    is_simulated = any(entry.verb == "quantize" for entry in session.entry.compressors)
    if not is_simulated or session.log["exports"]:
        return []
    return [
        "integers are only simulated, which is slower: add an export step to gain size and speed"
    ]


def _timed_together(
    session: Session, before: Figures, after: Figures
) -> tuple[Figures, Figures, list[str]]:
    """Time the original and the result alternately, since the load of the machine may have changed.

    If the result is a file, the original is also measured as a file of that format; if it cannot be
    written, its bytes are omitted. The third value contains notes on omitted figures.
    """
    from lilliput.measure.receipt import COUNTED, TIMED
    from lilliput.report.measure import measure_all

    exported = _final_export(session)
    if _is_slow(session):
        untimed: dict[str, Any] = {"p50": None, "p95": None, "runs": 0, "readings": ()}
        untimed |= {} if exported is None else {"bytes": None}
        return replace(before, **untimed), after, [_about_timing(session, exported is not None)]
    original, notes = make_original(session), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        models = [original, session.model]
        if exported is not None:
            final = inside(session.folder, exported["path"])
            models[1], path = final, Path(folder) / final.name
            try:
                models[0] = _exported_alike(session, original, path)
            except LilliputError as error:  # the receipt then names two runtimes
                before = replace(before, bytes=None)
                notes = [f"bytes before are unknown: no float file of this format ({error})"]
        timed = measure_all(models, session.inputs)
    if isinstance(models[0], Path):
        known = [name for name in COUNTED if getattr(timed[0], name) is not None]
        before = replace(before, **{name: getattr(timed[0], name) for name in known})
    before, after = (
        replace(x, **{name: getattr(t, name) for name in TIMED})
        for x, t in zip((before, after), timed, strict=True)
    )
    return before, after, notes


def _is_slow(session: Session) -> bool:
    """Whether recreating the original, to time it with the result, would take too long."""
    return bool(session.log.get("factory_seconds", 0.0) > _QUICK)


def _about_timing(session: Session, is_file: bool) -> str:
    """Explain why there is no latency, and no file, to compare with."""
    what = "not timed together with the result"
    what += " nor written as a file to compare bytes with" if is_file else ""
    seconds = session.log["factory_seconds"]
    return f"building the trained model takes {seconds:.0f} s, so it was {what}"


def _exported_alike(session: Session, original: Any, path: Path) -> Path:
    """Write the original as a file of the same format, so that both use the same runtime."""
    session.framework.evaluation_mode(original)
    format_ = target_for(path).name
    export(session.framework, original, format_, path, session.inputs, [], {"check": False})
    return path


def _final_export(session: Session) -> dict[str, Any] | None:
    """Return the final export of a run; None if the model was changed after it."""
    last = [step for step in session.recipe.steps if step.verb != "analyze"][-1:]
    is_file = last and last[0].verb in ("export", "auto")
    return session.log["exports"][-1] if is_file else None


def _largest_difference(session: Session) -> float | None:
    """Return the difference between the executed final file and the simulation."""
    exported = _final_export(session)
    runtimes = () if exported is None else exported["runtimes"].values()
    found = [x["max_error"] for x in runtimes if x.get("max_error") is not None]
    return max(found, default=None)


def _write_report(session: Session, receipt: Receipt) -> None:
    from lilliput.report.build import build_report
    from lilliput.report.snapshot import Snapshot, snapshot

    log = session.log
    build_report(
        receipt,
        before=Snapshot.model_validate(log["snapshot"]),
        after=snapshot(session.model, session.inputs, timing=True),
        quantization=_quantization(session),
        sensitivity=log.get("sensitivity"),
        points=log["points"],
        groups=_groups(session),
        export=log["exports"][-1] if log["exports"] else None,
        recipe=session.recipe.text or json.dumps(canonical(session.recipe), indent=1),
        reproduce="lilliput run recipe.yaml",
        title=f"Compression of {session.entry.factory}",
        notes=log["notes"],
    ).save(session.folder / REPORT)


def _quantization(session: Session) -> Any:
    """Return the effect of quantization on each tensor, if a quantizer is attached."""
    from lilliput.report.quantization import quantization_report

    samples = session.samples()
    if not samples or not session.compressors or session.entry.compressors[-1].verb != "quantize":
        return None
    try:
        return quantization_report(session.compressors[-1], samples, session.framework.forward)
    except LilliputError as error:
        session.log["notes"].append(f"no report of the quantized tensors: {error}")
        return None


def _groups(session: Session) -> Any:
    """Return which channels of the shrunk model belong together."""
    if "speedup" not in session.log or session.framework.name != "torch":
        return None
    from lilliput.speedup.channels import channel_groups

    try:
        return channel_groups(session.model, session.inputs)
    except LilliputError:
        return None
