"""The only folder that imports frameworks; the backend is chosen by the type of the model."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.foreign import explain_foreign

if TYPE_CHECKING:
    from lilliput.frameworks.base import Backend


def backend_of(model: Any) -> Backend:
    """Return the backend that can handle a model.

    Only frameworks that are already imported are checked: a model cannot exist without its framework.
    Keras is checked first, since a Keras model on torch is a torch module, too.
    """
    foreign = explain_foreign(model)
    if foreign is not None:
        raise UnsupportedModelError(foreign)
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model):
        return backend_named("keras")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return backend_named("torch")
    raise UnsupportedModelError(
        f"received {type(model).__name__!r} as the model, expected a torch.nn.Module or a keras.Model."
    )


@cache
def backend_named(name: str) -> Backend:
    """Return the backend of a framework, importing it."""
    backend: Backend = import_module(f"lilliput.frameworks.{name}.backend").create()
    return backend


def part_for(model: Any, name: str) -> Any:
    """Return a module of a model's framework by its name, such as ``'shrink'`` or ``'measure'``."""
    return part_of(backend_of(model).name, name)


def part_of(framework: str, name: str) -> Any:
    """Return such a module by the name of the framework; both frameworks have those of a protocol."""
    return import_module(f"lilliput.frameworks.{framework}.{name}")
