"""From the names on the command line to models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lilliput.cli.functions import call_user
from lilliput.cli.inputs import Sources
from lilliput.errors import ConfigError, StateError
from lilliput.export.targets.table import SUFFIXES

_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".h5", ".keras", ".pkl")
_NOTHING = Sources()


def open_model(
    reference: str, sources: Sources = _NOTHING, trust: bool = False
) -> tuple[Any, str, Any]:
    """Return a model, its framework, and example inputs.

    Parameters
    ----------
    reference : str
        ``module:factory``, or the folder of a finished run.
    sources : Sources
        The source of inputs; by default the run, otherwise there are none.
    trust : bool
        Whether a run may import its model from any folder.
    """
    from lilliput.recipes.step_specs import is_reference

    if is_reference(reference):
        model = call_user(reference, "model")
        framework = framework_of(model)
        return model, framework, sources.find(framework)
    place = Path(reference)
    if not (place / "run.json").is_file():
        raise ConfigError(f"model: received {reference!r}, {_expected(place)}.")
    from lilliput.recipes.opening import load_run

    try:
        held = load_run(place, trust=trust)
    except StateError as error:
        raise ConfigError(f"model: {error}") from error
    framework = framework_of(held.model)
    found = sources.find(framework)
    return held.model, framework, held.inputs if found is None else found


def _expected(place: Path) -> str:
    if place.suffix.lower() in _WEIGHTS:
        return (
            f"and a {place.suffix} file cannot be read: it contains weights, not the model. Expected "
            "module:factory, a function that builds the model and loads them"
        )
    return "expected module:factory, or the folder of an earlier run"


def framework_of(model: Any) -> str:
    """Return ``'torch'`` or ``'keras'``."""
    from lilliput.frameworks import backend_of

    return backend_of(model).name


def is_file(reference: str) -> bool:
    """Whether a reference is a file that a runtime executes.

    Examples
    --------
    >>> is_file("small.onnx"), is_file("digits:build")
    (True, False)
    """
    return Path(reference).suffix.lower() in SUFFIXES
