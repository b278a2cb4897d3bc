"""``lilliput doctor``: what is installed, what is missing, and what this processor can do."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from lilliput.cli.command import command
from lilliput.cli.terminal import Table, Terminal

# distribution, what it is for, and the extra that brings it
_PACKAGES = (
    ("torch", "PyTorch models", "torch"),
    ("keras", "Keras models", "keras"),
    ("tensorflow", "Keras on TensorFlow, LiteRT files", "litert"),
    ("jax", "Keras on JAX", ""),
    ("numpy", "everything but configs", "torch"),
    ("onnx", "ONNX files", "onnx"),
    ("onnxscript", "ONNX files of torch models", "onnx"),
    ("onnxruntime", "executing ONNX files", "onnx"),
    ("openvino", "checking ONNX files in OpenVINO", "openvino"),
    ("ai-edge-litert", "executing LiteRT files", "litert"),
    ("tf2onnx", "ONNX files of Keras models", "litert"),
    ("scikit-learn", "the digits of 'lilliput demo'", "demo"),
    ("pydantic", "configs and recipes", ""),
    ("safetensors", "saved models", ""),
    ("typer", "this command", ""),
    ("jinja2", "HTML reports", ""),
)
_ALSO = {"tensorflow": ("tensorflow-cpu",)}
_MEANING = {
    "avx2": "8 floats at a time",
    "avx512": "16 floats at a time",
    "vnni": "fast 8-bit integers",
    "amx": "very fast 8-bit integers",
    "neon": "4 floats at a time",
    "dotprod": "fast 8-bit integers",
    "i8mm": "faster 8-bit integers",
    "sve": "wide vectors",
}


def doctor(terminal: Terminal) -> None:
    """Show what is installed or missing, and the CPU."""
    if terminal.dry_run:
        terminal.would(["read the versions of installed packages", "read what the CPU can do"])
        return
    from lilliput.report.environment import environment

    found = environment()
    packages = [_package(*entry) for entry in _PACKAGES]
    missing = [row for row in packages if row["version"] is None]
    memory = total_memory()
    data = {
        **found,
        "packages": packages,
        "memory_bytes": memory,
        "advice": _advice(found, missing),
    }
    rows = [
        [row["name"], row["version"] or "missing", row["for"], row["install"] or ""]
        for row in packages
    ]
    flags = [
        [name, "yes" if has else "no", _MEANING.get(name, "")]
        for name, has in found["flags"].items()
    ]
    machine = [
        ["Python", f"{found['python']} ({sys.executable})"],
        ["system", f"{found['os']}, {found['machine']}"],
        ["processor", found["cpu"]],
        ["cores", str(found["cores"])],
        ["threads", _threads(found["cores"])],
        ["memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"],
    ]
    parts = [Table(["", ""], machine), "", Table(["package", "version", "for", "install"], rows)]
    parts += ["", Table(["instructions", "", ""], flags)] if flags else []
    parts += ["", *data["advice"]] if data["advice"] else []
    terminal.result(data, *parts)


def total_memory() -> int | None:
    """Return the bytes of memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _package(name: str, purpose: str, extra: str) -> dict[str, Any]:
    found = next(filter(None, map(_version, (name, *_ALSO.get(name, ())))), None)
    wanted = f"lilliput[{extra}]" if extra else name
    install = None if found else f"pip install '{wanted}'" if extra else f"pip install {wanted}"
    return {"name": name, "version": found, "for": purpose, "install": install}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _threads(cores: int) -> str:
    limit = os.environ.get("OMP_NUM_THREADS")
    return f"{limit}, set by OMP_NUM_THREADS" if limit else f"{cores}, one per core"


def _advice(found: dict[str, Any], missing: list[dict[str, Any]]) -> list[str]:
    """Return what follows from all this, in words."""
    gone = {row["name"] for row in missing}
    advice = []
    if {"torch", "keras"} <= gone:
        advice.append("no framework: pip install 'lilliput[torch]' or 'lilliput[keras]'")
    flags = found["flags"]
    if flags and not (flags.get("vnni") or flags.get("amx") or flags.get("dotprod")):
        advice.append(
            "int8 here: smaller files, and less speed than on a processor with VNNI or dotprod"
        )
    return advice


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", "Help")(doctor)
