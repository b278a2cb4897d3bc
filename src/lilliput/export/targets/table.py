"""The table of all targets, and functions to look one up.

>>> [target.name for target in targets_of("torch")]
['onnx', 'openvino', 'executorch']
>>> target_for("small.tflite").title
'LiteRT'
"""

from __future__ import annotations

import os
from pathlib import Path

from lilliput.errors import ConfigError, nearest
from lilliput.export.targets.executorch import ExecuTorch
from lilliput.export.targets.litert import LiteRT
from lilliput.export.targets.onnx import Onnx
from lilliput.export.targets.openvino import OpenVINO
from lilliput.export.targets.target import Package, Target

_ALL: tuple[Target, ...] = (Onnx(), LiteRT(), OpenVINO(), ExecuTorch())

TARGETS = {target.name: target for target in _ALL}
SUFFIXES = {target.suffix: target for target in _ALL}


def target_named(name: str) -> Target:
    """Return a target by its name in recipes."""
    if name not in TARGETS:
        raise ConfigError(
            f"export: received {name!r}, expected {', '.join(TARGETS)}.{nearest(name, TARGETS)}"
        )
    return TARGETS[name]


def target_for(path: str | os.PathLike[str]) -> Target:
    """Return the target of a file by its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{str(path)!r}: expected a file that ends in {' or '.join(SUFFIXES)}."
            f"{nearest(suffix, SUFFIXES)}"
        )
    return SUFFIXES[suffix]


def targets_of(framework: str) -> list[Target]:
    """Return the targets that a framework's models can be written for."""
    return [target for target in TARGETS.values() if target.find_writer(framework)]


def packages() -> list[Package]:
    """Return the packages that all targets use, each once."""
    found = {package.name: package for target in TARGETS.values() for package in target.packages}
    return list(found.values())
