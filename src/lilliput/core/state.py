"""The state of a compression run as data: saved, loaded, and passed to later stages."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lilliput.core.state_checks import find_state_problems
from lilliput.errors import LilliputError, StateError
from lilliput.packing import NotPlainError, pack, unpack
from lilliput.printing import printable, shown


@dataclass(frozen=True)
class CompressionState:
    """Masks, scales and progress of one compressor.

    Parameters
    ----------
    algorithm : str
        Class name of the compressor.
    layers : dict
        Per wrapper name: ``type`` and ``shape`` of the layer, its ``config``, and ``values``, the
        plain attributes that the algorithm set.
    tensors : dict
        Per wrapper name: the buffers, such as ``weight_mask``.
    progress : dict
        Attributes of the compressor itself, such as the epoch.
    framework : str
        The framework of the tensors.
    """

    algorithm: str
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"

    def __repr__(self) -> str:
        count = sum(len(held) for held in self.tensors.values())
        progress = "".join(f", {key}={shown(value)}" for key, value in self.progress.items())
        return (
            f"CompressionState({printable(self.algorithm)}, {self.framework}: {len(self.layers)} layers, "
            f"{count} tensors{progress})"
        )

    def save(self, folder: str | Path) -> None:
        """Write the state into a folder; after a crash it contains either the old state or the new one."""
        from lilliput.core.state_files import save_state  # here to keep the import of Lilliput fast

        save_state({x.name: getattr(self, x.name) for x in dataclasses.fields(self)}, folder)

    @classmethod
    def load(cls, folder: str | Path, framework: str | None = None) -> CompressionState:
        """Read a state written by :meth:`save`; raise if it is damaged or from a newer version.

        Tensors are those of the framework that wrote them, or of ``framework``.
        """
        from lilliput.core.state_files import load_state

        return cls(**load_state(folder, framework))


def capture(compressor: Any) -> CompressionState:
    """Return the state of a compressor; tensors are copied."""
    layers, tensors, unset = {}, {}, _unset(compressor)
    for wrapper in compressor._every_wrapper():
        held, attributes = wrapper.snapshot()
        values: dict[str, Any] = {}
        inside: dict[str, Any] = {}
        for key, value in attributes.items():
            if value is None and key in unset:
                continue  # the default of a new wrapper
            try:
                # The slash tells the tensors inside attributes from buffers of the same name.
                values[key] = pack(value, f"{key}/", inside, compressor._is_tensor)
            except NotPlainError as error:
                raise StateError(
                    f"layer {wrapper.name!r}: the attribute {key!r} holds {error.what}, which cannot be "
                    "saved in a state; use tensors, numbers, strings, lists, tuples and dicts, or start its "
                    "name with an underscore to exclude it."
                ) from error
        layers[wrapper.name] = {
            "type": wrapper.type,
            "shape": list(wrapper.layer_info.shape),
            "config": copy.deepcopy(wrapper.config),
            "values": values,
        }
        tensors[wrapper.name] = held | {k: copy.deepcopy(x) for k, x in inside.items()}
    progress = {name: getattr(compressor, name) for name in compressor.tracked}
    framework = str(compressor._backend.name)
    return CompressionState(type(compressor).__name__, layers, tensors, progress, framework)


def _unset(compressor: Any) -> set[str]:
    """Return the wrapper attributes that are initially None."""
    return {name for name, value in compressor._attributes.items() if value is None}


def restore(compressor: Any, state: CompressionState, then: Callable[[], None]) -> None:
    """Put a state into a compressor and call ``then``; if anything fails, restore the previous state.

    Everything is validated before anything is written. Later failures are undone.
    """
    wrappers = {wrapper.name: wrapper for wrapper in compressor._every_wrapper()}
    problems = find_state_problems(compressor, wrappers, state)
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in sorted(problems, key=str))
        raise StateError(f"the state does not fit this compressor:\n{listed}")
    unpacked = {name: _unpack_values(name, state) for name in wrappers}
    undo = [wrapper.undo_point() for wrapper in wrappers.values()]
    progress = {name: getattr(compressor, name) for name in compressor.tracked}
    unset = dict.fromkeys(_unset(compressor))
    try:
        for name, wrapper in wrappers.items():
            values = {**unset, **unpacked[name]}
            wrapper.restore(_own_tensors(state, name), values)
        _set(compressor, {name: state.progress[name] for name in compressor.tracked})
        then()
    except BaseException as error:
        for back in undo:
            back()
        _set(compressor, progress)
        with contextlib.suppress(Exception):  # the first error is the one to report
            then()
        if isinstance(error, LilliputError) or not isinstance(error, Exception):
            raise
        raise StateError(
            f"the state does not fit this compressor: {type(error).__name__}: {error}"
        ) from error


def _set(compressor: Any, progress: Mapping[str, Any]) -> None:
    for name, value in progress.items():
        setattr(compressor, name, value)


def _own_tensors(state: CompressionState, name: str) -> dict[str, Any]:
    """Return the buffers of a wrapper, without the tensors inside its plain attributes."""
    return {k: t for k, t in state.tensors.get(name, {}).items() if "/" not in k}


def _unpack_values(name: str, state: CompressionState) -> dict[str, Any]:
    title = f"layer {name!r}: its saved attributes are"
    values = {"dict": state.layers[name]["values"]}
    unpacked: dict[str, Any] = unpack(values, state.tensors.get(name, {}), title)
    return copy.deepcopy(unpacked)
