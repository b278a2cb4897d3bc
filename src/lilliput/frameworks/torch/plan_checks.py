"""Check whether the plan in a file fits a model, on a copy, before anything is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lilliput.errors import StateError
from lilliput.frameworks.torch.attributes import held_value
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.layer_sizes import sizes_of
from lilliput.graph.plan import Attributes


def check_attributes(attributes: Attributes, model: nn.Module, folder: Path) -> None:
    """Raise for attributes that are not sizes, or that no cut makes smaller."""
    modules = dict(model.named_modules())
    for (path, name), value in attributes.items():
        module = modules.get(path)
        held = None if module is None else held_value(module, name)
        if not _is_smaller(value, held):
            raise StateError(
                f"{folder}: the plan does not fit this model: {path!r} has no size called {name!r} that "
                f"could become {list(value) if isinstance(value, tuple) else value}."
            )
        known = sizes_of(module)
        if known and name in _constants(module) and name not in known:
            raise StateError(
                f"{folder}: the plan sets {name!r} of {path!r}, which no cut changes; shrink the model "
                "again, and save it."
            )


def _is_smaller(new: Any, old: Any) -> bool:
    """Whether a size, or each of several, can result from a cut of the existing one."""
    if isinstance(new, (list, tuple)):
        pairs = zip(new, old, strict=False) if isinstance(old, (list, tuple)) else ()
        return (
            bool(new)
            and isinstance(old, (list, tuple))
            and len(new) == len(old)
            and all(_is_smaller(a, b) for a, b in pairs)
        )
    return type(old) is int and 0 <= new <= old


def _constants(module: Any) -> set[str]:
    """Return the names of the size attributes of torch's own layers."""
    return {name for cls in type(module).__mro__ for name in vars(cls).get("__constants__", ())}


def check_layers(trial: nn.Module, folder: Path) -> None:
    """Raise if the plan gives a layer sizes that differ from those of its tensors."""
    for path, module in trial.named_modules():
        for name, expected in sizes_of(module).items():
            received = getattr(module, name)
            if received != expected:
                raise StateError(
                    f"{folder}: the plan does not fit this model: it makes {name} of {path!r} "
                    f"{received}, and the tensors have {expected}."
                )


def check_run(plain: nn.Module, trial: nn.Module, inputs: Any, folder: Path) -> None:
    """Raise if the model no longer runs with the plan."""
    args, kwargs = as_inputs(inputs)
    for model in (plain, trial):
        try:
            with torch.no_grad(), quiet():
                model(*args, **kwargs)
        except Exception as error:
            if model is plain:  # some models do not run on zeros
                return
            raise StateError(
                f"{folder}: the plan does not fit this model, which does not run with it "
                f"({type(error).__name__}: {error})."
            ) from error
