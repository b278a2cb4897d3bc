"""The compiled functions of a model, recreated when their inputs to tracing have changed."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.scopes import is_tracing

_KINDS = ("train", "test", "predict")
_PENDING = "_lilliput_pending"


def retrace(model: Any) -> None:
    """Retrace the compiled functions of a model; later, if one is being traced."""
    if is_tracing():
        vars(model)[_PENDING] = True
        return
    vars(model).pop(_PENDING, None)
    for kind in _KINDS:
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)


def retrace_if_due(model: Any) -> None:
    """Retrace as postponed by :func:`retrace`, except for a training in progress.

    Ranges become known while a training step is traced: that step quantizes, and only the inference
    functions were traced without quantization.
    """
    if not vars(model).pop(_PENDING, False):
        return
    for kind in _KINDS[1:]:
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
