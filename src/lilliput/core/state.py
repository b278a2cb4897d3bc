"""What a compression run knows, as data: saved, loaded, and handed to the stages that follow."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lilliput.backends import backend_named
from lilliput.errors import Problem, StateError
from lilliput.files import write_atomically

FORMAT = 1
_JSON = "lilliput.json"


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
        Whose tensors these are.
    """

    algorithm: str
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"

    def save(self, folder: str | Path) -> None:
        """Write the state into a folder, so that a crash leaves either the old state or the new.

        The tensors go to a file named after its content; ``lilliput.json`` is replaced last and
        says which file counts.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        data = backend_named(self.framework).dump_tensors(
            {f"{layer}/{key}": t for layer, ts in self.tensors.items() for key, t in ts.items()}
        )
        digest = hashlib.sha256(data).hexdigest()
        name = f"state-{digest[:16]}.safetensors"
        write_atomically(target / name, data)
        document = {
            "format": FORMAT,
            "kind": "compression state",
            "algorithm": self.algorithm,
            "framework": self.framework,
            "layers": self.layers,
            "progress": self.progress,
            "tensors": {"file": name, "sha256": digest},
        }
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
        write_atomically(target / _JSON, text.encode())
        for stale in target.glob("state-*.safetensors"):
            if stale.name != name:
                stale.unlink()

    @classmethod
    def load(cls, folder: str | Path, framework: str = "torch") -> CompressionState:
        """Read a state written by :meth:`save`; refuse one that is damaged or from the future."""
        target = Path(folder)
        try:
            document = json.loads((target / _JSON).read_text(encoding="utf-8"))
            version = document["format"]
            if version > FORMAT:
                raise StateError(
                    f"{target / _JSON}: written in format {version}, this version of Lilliput reads "
                    f"up to {FORMAT}; upgrade Lilliput."
                )
            data = (target / Path(document["tensors"]["file"]).name).read_bytes()
            if hashlib.sha256(data).hexdigest() != document["tensors"]["sha256"]:
                raise StateError(f"{target}: the tensors are damaged (checksum differs).")
            tensors: dict[str, dict[str, Any]] = {}
            for path, tensor in backend_named(framework).parse_tensors(data).items():
                layer, _, key = path.rpartition("/")
                tensors.setdefault(layer, {})[key] = tensor
            return cls(
                document["algorithm"], document["layers"], tensors, document["progress"], framework
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"{target}: no readable compression state ({error}).") from error


def capture(compressor: Any) -> CompressionState:
    """Return the state of a compressor; tensors are copied."""
    layers, tensors = {}, {}
    for wrapper in compressor.get_modules_wrapper():
        buffers, values = wrapper.snapshot()
        layers[wrapper.name] = {
            "type": wrapper.type,
            "shape": list(wrapper.layer_info.shape),
            "config": wrapper.config,
            "values": {key: copy.deepcopy(x) for key, x in values.items() if is_plain(x)},
        }
        tensors[wrapper.name] = buffers
    progress = {name: getattr(compressor, name) for name in compressor.tracked}
    framework = compressor.backend_name
    return CompressionState(type(compressor).__name__, layers, tensors, progress, framework)


def restore(compressor: Any, state: CompressionState) -> None:
    """Put a state back into a compressor, after checking all of it."""
    wrappers = {wrapper.name: wrapper for wrapper in compressor.get_modules_wrapper()}
    problems = [
        Problem(name, "not in this model") for name in state.layers.keys() - wrappers.keys()
    ]
    problems += [
        Problem(name, "not in the state") for name in wrappers.keys() - state.layers.keys()
    ]
    if state.algorithm != type(compressor).__name__:
        text = f"the state is of {state.algorithm}, this is a {type(compressor).__name__}"
        problems.append(Problem("algorithm", text))
    for name in wrappers.keys() & state.layers.keys():
        expected, received = list(wrappers[name].layer_info.shape), state.layers[name]["shape"]
        if expected != received:
            problems.append(Problem(name, f"weight shape {received}, the model has {expected}"))
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in sorted(problems, key=str))
        raise StateError(f"the state does not fit this compressor:\n{listed}")
    for name, wrapper in wrappers.items():
        wrapper.restore(state.tensors.get(name, {}), state.layers[name]["values"])
    for name in compressor.tracked:
        if name in state.progress:
            setattr(compressor, name, state.progress[name])


def is_plain(value: Any) -> bool:
    """Whether JSON gives the value back as it was."""
    if isinstance(value, (list, tuple)):
        return isinstance(value, list) and all(map(is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(x) for key, x in value.items())
    return value is None or isinstance(value, (bool, int, float, str))
