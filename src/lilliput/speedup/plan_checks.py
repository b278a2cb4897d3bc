"""Whether the plan in a file fits a model: checked on a copy, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lilliput.errors import StateError
from lilliput.frameworks.torch.attributes import held_value
from lilliput.frameworks.torch.capture import as_inputs, quiet
from lilliput.frameworks.torch.leaf import leaf_attributes

Shapes = dict[str, list[int]]


def compare_shapes(saved: Shapes, here: Shapes, folder: Path) -> None:
    """Refuse a model other than the one that was shrunk."""
    faults = [f"{name} is not in this model" for name in saved if name not in here]
    faults += [f"{name} is not in the saved model" for name in here if name not in saved]
    faults += [
        f"{name} has shape {here[name]}, the original had {shape}"
        for name, shape in saved.items()
        if name in here and here[name] != shape
    ]
    if faults:
        listed = "".join(f"\n  - {fault}" for fault in faults[:10])
        more = f"\n  … and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise StateError(
            f"{folder} was shrunk from another model than this one; give load() a model as it was "
            f"before shrinking:{listed}{more}"
        )


def check_cuts(cuts: Iterable[Any], source: Shapes, folder: Path) -> None:
    """Refuse cuts that keep what there is not."""
    for cut in cuts:
        shape = source.get(cut.tensor, [])
        size = shape[cut.dim] if 0 <= cut.dim < len(shape) else 0
        is_ragged = bool(cut.keep) and isinstance(cut.keep[0], list)
        rows: list[Any] = cut.keep if is_ragged else [cut.keep]
        for row in rows:
            if len(row) != len(rows[0]) or len({x for x in row if 0 <= x < size}) != len(row):
                raise StateError(
                    f"{folder}: the plan does not fit this model: {cut.tensor} has {size} indices in "
                    f"dimension {cut.dim}, and the plan keeps others."
                )


def check_attributes(attributes: Iterable[Any], model: nn.Module, folder: Path) -> None:
    """Refuse attributes that are not sizes, or that no cut makes smaller."""
    modules = dict(model.named_modules())
    for attribute in attributes:
        module = modules.get(attribute.module)
        held = None if module is None else held_value(module, attribute.name)
        if not _is_smaller(attribute.value, held):
            raise StateError(
                f"{folder}: the plan does not fit this model: {attribute.module!r} has no size called "
                f"{attribute.name!r} that could become {attribute.value}."
            )
        known = leaf_attributes(module)
        if known and attribute.name in _constants(module) and attribute.name not in known:
            raise StateError(
                f"{folder}: the plan sets {attribute.name!r} of {attribute.module!r}, which no cut "
                "changes; shrink the model again, and save it."
            )


def _is_smaller(new: Any, old: Any) -> bool:
    """Whether a size, or each of several, can be what a cut leaves of the one there is."""
    if isinstance(new, list):
        pairs = zip(new, old, strict=False) if isinstance(old, (list, tuple)) else ()
        return (
            bool(new)
            and isinstance(old, (list, tuple))
            and len(new) == len(old)
            and all(_is_smaller(a, b) for a, b in pairs)
        )
    return type(old) is int and 0 <= new <= old


def _constants(module: Any) -> set[str]:
    """Return the names of what torch's own layers remember."""
    return {name for cls in type(module).__mro__ for name in vars(cls).get("__constants__", ())}


def check_layers(trial: nn.Module, folder: Path) -> None:
    """Refuse a plan after which a layer remembers other sizes than those of its tensors."""
    for path, module in trial.named_modules():
        for name, expected in leaf_attributes(module).items():
            received = getattr(module, name)
            if received != expected:
                raise StateError(
                    f"{folder}: the plan does not fit this model: it makes {name} of {path!r} "
                    f"{received}, and the tensors have {expected}."
                )


def check_run(plain: nn.Module, trial: nn.Module, inputs: Any, folder: Path) -> None:
    """Refuse a plan after which the model does not run as it ran before."""
    args, kwargs = as_inputs(inputs)
    for model in (plain, trial):
        try:
            with torch.no_grad(), quiet():
                model(*args, **kwargs)
        except Exception as error:
            if model is plain:  # inputs of zeros are not for every model
                return
            raise StateError(
                f"{folder}: the plan does not fit this model, which does not run with it "
                f"({type(error).__name__}: {error})."
            ) from error
