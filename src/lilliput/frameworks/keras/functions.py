"""The compiled functions of a model: made again when what they were traced with has changed."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.scopes import is_tracing

_KINDS = ("train", "test", "predict")
_PENDING = "_lilliput_pending"


def retrace(model: Any) -> None:
    """Have the compiled functions of a model traced again; later, if one is being traced."""
    if is_tracing():
        vars(model)[_PENDING] = True
        return
    vars(model).pop(_PENDING, None)
    for kind in _KINDS:
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)


def retrace_if_due(model: Any) -> None:
    """Do what :func:`retrace` had to postpone, but do not touch a training in progress.

    While a step of training is traced, ranges become known: that step quantizes, and only functions
    of inference were traced without.
    """
    if not vars(model).pop(_PENDING, False):
        return
    for kind in _KINDS[1:]:
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
