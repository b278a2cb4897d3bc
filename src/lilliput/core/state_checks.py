"""Check whether a state fits a compressor, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lilliput.errors import Problem
from lilliput.printing import shown

# Smallest value of each counter of the engine and its algorithms.
_LEAST = {"now_epoch": 0, "current_step": 0, "updated_epoch": -1, "batches": 0, "observations": 0}
_MOST = 2**53
_PLAIN = (bool, int, float, str, list, tuple, dict)


def find_state_problems(compressor: Any, wrappers: dict[str, Any], state: Any) -> list[Problem]:
    """Return all reasons why a state does not fit."""
    ours, theirs = wrappers.keys(), state.layers.keys()
    problems = [Problem(name, "not in this model") for name in theirs - ours]
    problems += [Problem(name, "not in the state") for name in ours - theirs]
    problems += [
        Problem(name, "tensors of a layer that is not in the state")
        for name in state.tensors.keys() - theirs
    ]
    if state.algorithm != type(compressor).__name__:
        text = f"the state is of {state.algorithm}, this is a {type(compressor).__name__}"
        problems.append(Problem("algorithm", text))
    for name in ours & theirs:
        problems += _check_layer(wrappers[name], state, is_closed(compressor))
    return problems + list(_check_progress(compressor, state.progress))


def is_closed(compressor: Any) -> bool:
    """Whether all attributes of the wrappers are known in advance, as for Lilliput's own algorithms.

    An author's algorithm may add attributes at any time, and gets them back from its state.
    """
    return type(compressor).__module__.partition(".")[0] == "lilliput"


def _check_layer(wrapper: Any, state: Any, closed: bool) -> Iterable[Problem]:
    name, saved = wrapper.name, state.layers[wrapper.name]
    expected, received = list(wrapper.layer_info.shape), saved["shape"]
    if expected != received:
        yield Problem(name, f"weight shape {received}, the model has {expected}")
        return
    here, there = _settings(wrapper.config), _settings(saved["config"])
    if here != there:
        yield Problem(name, f"the state was made by {there}, this rule is {here}")
    own = {k: t for k, t in state.tensors.get(name, {}).items() if "/" not in k}
    faults = _check_values(wrapper, saved["values"])
    faults |= wrapper.find_faults(own, saved["values"])
    if closed:
        known = {*wrapper.tensors(), *wrapper.attributes(), *wrapper.optional_tensors}
        unknown = {*own, *saved["values"]} - known
        faults |= dict.fromkeys(unknown, "unknown here; was it saved by another version?")
    for key, text in faults.items():
        yield Problem(f"{name} → {key}", text)


def _check_values(wrapper: Any, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the plain attributes whose type differs from the current ones."""
    faults = {}
    attributes, declared = wrapper.attributes(), wrapper.compressor._attributes
    for key, value in values.items():
        held = attributes.get(key)
        fault = _fault_of_number(key, value)
        is_unset = value is None and key in declared and declared[key] is None
        if not fault and not is_unset and isinstance(held, _PLAIN) and not _is_alike(value, held):
            fault = f"received {shown(value)}, expected a {type(held).__name__}"
        if fault:
            faults[key] = fault
    return faults


def _is_alike(packed: Any, held: Any) -> bool:
    """Whether a packed value has the type of a current one."""
    if isinstance(held, (dict, tuple)):
        return isinstance(packed, dict) and list(packed) == [type(held).__name__]
    if isinstance(held, float):
        is_special = isinstance(packed, dict) and list(packed) == ["float"]  # NaN or infinity
        return is_special or type(packed) in (int, float)
    return type(packed) is type(held)


def _check_progress(compressor: Any, progress: Mapping[str, Any]) -> Iterable[Problem]:
    for name in compressor.tracked:
        received = progress.get(name)
        fault = _fault_of_number(name, received)
        if type(received) is not type(getattr(compressor, name)):
            fault = f"received {shown(received)}"
        if fault:
            yield Problem(f"progress → {name}", fault)
    for name in progress.keys() - set(compressor.tracked):
        yield Problem(f"progress → {name}", "unknown here; was it saved by another version?")


def _fault_of_number(name: str, value: Any) -> str:
    least = _LEAST.get(name)
    if least is None or isinstance(value, bool) or not isinstance(value, int):
        return ""
    if least <= value <= _MOST:
        return ""
    return f"received {shown(value)}, expected an integer from {least} to 2**53"


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a rule, without the keys that select layers."""
    return {key: value for key, value in config.items() if key not in ("op_types", "op_names")}
