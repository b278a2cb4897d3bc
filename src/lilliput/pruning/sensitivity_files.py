"""Files of a sensitivity scan and a pruning run: CSV, JSON and safetensors, each written atomically.

A checkpoint folder contains, for round n,

- ``sensitivity_before_round_n.json``: every metric measured so far, written immediately;
- ``sensitivity_before_round_n.csv``: the finished scan, in NNI's format;
- ``weights_and_masks_after_round_n.safetensors``: the model's state dict;

and ``progress.json``, written last, with the number of complete rounds and the inputs of the run.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue

from lilliput.errors import ConfigError, StateError
from lilliput.files import make_folder, write_atomically
from lilliput.frameworks import backend_of
from lilliput.printing import csv_cell, from_csv_cell
from lilliput.store import Strict, digest_of, read_document, read_tensors

Curves = dict[str, dict[float, float]]  # layer -> sparsity -> metric
Source = dict[str, Any]  # the inputs that a file was created from, as JSON


def write_curves(path: str | os.PathLike[str], curves: Curves, sparsities: list[float]) -> None:
    """Write curves in NNI's format: a row per layer, shorter where the scan stopped early."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["layername", *sparsities])
    for layer, curve in curves.items():
        writer.writerow([csv_cell(layer), *(curve[sparsity] for sparsity in sorted(curve))])
    write_atomically(path, text.getvalue().encode())


def read_curves(path: str | os.PathLike[str]) -> Curves:
    """Read a file written by :func:`write_curves` or by NNI."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row]
        sparsities = [float(cell) for cell in header[1:]]
        if header[0] != "layername" or any(len(row) > len(header) for row in rows):
            raise ValueError("its columns are not 'layername' and one per sparsity")
        curves: Curves = {}
        for layer, *cells in rows:
            curves[from_csv_cell(layer)] = dict(zip(sparsities, map(float, cells), strict=False))
        return curves
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{os.fspath(path)}: no sensitivity table ({error}); expected a CSV with the header "
            "'layername,0.1,0.2,…' and a row of metrics per layer."
        ) from error


def fingerprint(model: Any) -> str:
    """Return a hash of all tensors in a model's state dict, with their names."""
    return digest_of(_dump(model))


class _Made(Strict):
    format: Literal[1] = 1
    made_from: dict[str, JsonValue]


class Scan(_Made):
    """Metrics measured so far; None represents NaN."""

    kind: Literal["sensitivity scan"] = "sensitivity scan"
    baseline: float | None = None
    metrics: dict[str, dict[str, float | None]] = Field(default_factory=dict)

    def find(self, layer: str, sparsity: float) -> float | None:
        """Return a metric measured earlier."""
        curve = self.metrics.get(layer, {})
        if repr(sparsity) not in curve:
            return None
        metric = curve[repr(sparsity)]
        return math.nan if metric is None else metric

    def note(self, layer: str, sparsity: float, metric: float) -> None:
        """Record a metric."""
        value = metric if math.isfinite(metric) else None
        self.metrics.setdefault(layer, {})[repr(sparsity)] = value


class Progress(_Made):
    """The progress of a pruning run."""

    kind: Literal["sensitivity pruning"] = "sensitivity pruning"
    rounds: list[dict[str, float | None]] = Field(default_factory=list)
    is_done: bool = False
    tensors: str = ""
    sha256: str = ""


def save(path: Path, document: _Made) -> None:
    """Write a scan or the progress atomically."""
    make_folder(path.parent)
    write_atomically(path, document.model_dump_json(indent=1).encode())


def load_scan(path: Path, made_from: Source) -> Scan:
    """Return the scan in a file, or a new one if there is none; raise if it belongs to another model."""
    return _load(path, Scan, made_from) if path.exists() else Scan(made_from=made_from)


def load_progress(path: Path, made_from: Source) -> Progress:
    """Return the progress in a file, or a new one if there is none; raise if it belongs to another run."""
    return _load(path, Progress, made_from) if path.exists() else Progress(made_from=made_from)


def _load(path: Path, kind: Any, made_from: Source) -> Any:
    document = read_document(path.parent, kind, kind.__name__.lower(), path.name)
    # Compared as JSON, so that a tuple equals the list that was read back.
    here, there = json.loads(json.dumps(made_from)), document.made_from
    changed = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
    if changed:
        listed = "; ".join(
            f"{key} {_short(there, key)}, here {_short(here, key)}" for key in changed
        )
        raise StateError(
            f"{path} was created with different settings: {listed}. Use another checkpoint_dir, or delete "
            "this one to start over."
        )
    return document


def _short(source: Mapping[str, Any], key: str) -> str:
    text = json.dumps(source.get(key))
    return text if len(text) <= 60 else f"{text[:57]}…"


def save_model(path: Path, model: Any) -> tuple[str, str]:
    """Write a model's state dict; return the name and the hash of the file."""
    data = _dump(model)
    make_folder(path.parent)
    write_atomically(path, data)
    return path.name, digest_of(data)


def load_model(folder: Path, progress: Progress, model: Any) -> None:
    """Load the state dict of the last complete round into the model."""
    path = folder / Path(progress.tensors).name
    data = read_tensors(path, progress.sha256, "weights of a finished round")
    backend = backend_of(model)
    backend.load_model(model, backend.parse_tensors(data))


def _dump(model: Any) -> bytes:
    backend = backend_of(model)
    return backend.dump_tensors(backend.model_tensors(model))
