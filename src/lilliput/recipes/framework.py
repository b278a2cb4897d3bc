"""The framework interface of a run, implemented by its module ``recipe``, and the stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lilliput.export.targets.table import target_named
from lilliput.frameworks import part_of
from lilliput.frameworks.looping import Loop


def loop_named(name: str) -> Loop:
    """Return the part of a framework, importing it."""
    found: Loop = part_of(name, "recipe").loop
    return found


def recover(loop: Loop, model: Any, batches: list[Any], how: str, original: Any) -> None:
    """Refit the layers or the batch norms of a pruned model; with an original, to its outputs."""
    from lilliput.recovery.recalibrate import recalibrate
    from lilliput.recovery.reconstruct import reconstruct

    if how == "reconstruct":
        reconstruct(model, batches, original, progress=False)
    else:
        recalibrate(model, batches, loop.forward, original=original)


def shrink(loop: Loop, model: Any, inputs: Any, options: dict[str, Any], folder: Path) -> Any:
    """Cut channels out, and write the plan into a folder; return the result."""
    from lilliput.speedup.shrink import speedup

    make_trainable = loop.training_of(model)
    result = speedup(model, inputs, **options)
    result.save(folder)
    make_trainable(result.model)
    return result


def shrink_again(loop: Loop, model: Any, folder: Path) -> Any:
    """Return a model of the original class, shrunk by the plan in a folder."""
    from lilliput.speedup.saved import load

    make_trainable = loop.training_of(model)
    shrunk = load(model, folder)
    make_trainable(shrunk)
    return shrunk


def export(
    loop: Loop, model: Any, format_: str, path: Path, inputs: Any, samples: Any, options: Any
) -> Any:
    """Write a file for one of the targets, and return the ExportResult."""
    write = target_named(format_).writer(loop.name).load()
    return write(model, path, inputs, **{"calibration": samples, **options})
