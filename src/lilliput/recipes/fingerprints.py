"""Fingerprints of a run's inputs, so that a continued run is the same run or an error."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from lilliput.errors import StateError
from lilliput.extras import versions_of
from lilliput.recipes.spec import Recipe

_BATCHES = 2  # of the data that are hashed
_PACKAGES = {
    "torch": ("lilliput", "torch", "numpy"),
    "keras": ("lilliput", "keras", "tensorflow", "jax", "torch", "numpy"),
}


def seed_python(number: int) -> None:
    """Seed the generators of Python and NumPy."""
    random.seed(number)
    np.random.seed(number)


def canonical(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data, without comments and unwritten defaults."""
    data: dict[str, Any] = json.loads(recipe.model_dump_json(exclude_defaults=True))
    return data


def of_model(tensors: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """Return names, types and shapes of a model's tensors, and a hash of their content."""
    shapes = {name: f"{_dtype(x)} {list(x.shape)}" for name, x in tensors.items()}
    return {"tensors": shapes, "sha256": hashlib.sha256(data).hexdigest()}


def of_data(batches: Any, inputs: Any) -> dict[str, Any]:
    """Return a hash of the first two batches and the example inputs, and the number of batches."""
    digest = hashlib.sha256()
    for batch in islice(iter(batches), _BATCHES) if batches is not None else ():
        _add(digest, batch)
    _add(digest, inputs)
    count = len(batches) if hasattr(batches, "__len__") else None
    return {"sha256": digest.hexdigest(), "batches": count}


def of_versions(framework: str) -> dict[str, str]:
    """Return the versions on which the last bit of a result depends."""
    return versions_of(_PACKAGES[framework])


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], folder: Any) -> None:
    """Raise if inputs of a run changed since it was started, naming them."""
    found = [
        *_recipe_changes(before.get("recipe"), now.get("recipe")),
        *_version_changes(before.get("versions"), now.get("versions")),
        *_model_changes(before.get("model"), now.get("model")),
        *_data_changes(before.get("data"), now.get("data")),
    ]
    if found:
        listed = "".join(f"\n  - {text}" for text in found)
        raise StateError(
            f"{folder}: this run was started with different inputs and cannot be continued:{listed}\n"
            "Undo the change to continue, or start over in another folder."
        )


def _recipe_changes(before: Any, now: Any) -> list[str]:
    if before is None or now is None or before == now:
        return []
    return [f"the recipe changed: {text}" for text in _differences(before, now, "")][:5]


def _differences(before: Any, now: Any, where: str) -> list[str]:
    """Return where two nested values differ, as text."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        pairs = [(f"{where} → {k}" if where else k, before.get(k), now.get(k)) for k in keys]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(_item(where, i), x, y) for i, (x, y) in enumerate(zip(before, now, strict=True))]
    else:
        return [f"{where} was {_short(before)}, is {_short(now)}"] if before != now else []
    return [text for place, x, y in pairs for text in _differences(x, y, place)]


def _item(where: str, index: int) -> str:
    return f"step {index + 1}" if where == "steps" else f"{where} → {index}"


def _version_changes(before: Any, now: Any) -> list[str]:
    if before is None or now is None:
        return []
    return [
        f"{name} was {old}, is {now.get(name, 'not installed')} (a different version may round differently)"
        for name, old in before.items()
        if now.get(name) != old
    ]


def _model_changes(before: Any, now: Any) -> list[str]:
    if before is None or now is None or before == now:
        return []
    old, new = before.get("tensors", {}), now.get("tensors", {})
    found = [
        f"{name} was {old[name]}, is {new[name]}"
        for name in old
        if old[name] != new.get(name, old[name])
    ]
    found += [f"{name} is gone" for name in old if name not in new]
    found += [f"{name} is new" for name in new if name not in old]
    if not found:
        return ["the model changed: same layers, different weights"]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [f"the model changed: {'; '.join(found[:3])}{more}"]


def _data_changes(before: Any, now: Any) -> list[str]:
    if before is None or now is None or before == now:
        return []
    if before["batches"] != now["batches"]:
        return [f"the data changed: {before['batches']} batches, now {now['batches']}"]
    return [f"the data changed: the first {_BATCHES} batches (or the example inputs) differ"]


def _add(digest: Any, value: Any) -> None:
    """Add nested tensors and plain values to a hash."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(f"key {key}".encode())
            _add(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(f"items {len(value)}".encode())
        for item in value:
            _add(digest, item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = _to_array(value)
        digest.update(f"{_dtype(value)} {list(value.shape)}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__name__.encode())


def _to_array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def _dtype(value: Any) -> str:
    return str(value.dtype).rpartition(".")[2]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if value is not None else "not there"
    return text if len(text) <= 60 else f"{text[:57]}..."
