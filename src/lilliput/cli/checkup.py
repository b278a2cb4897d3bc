"""Report what is installed, what is missing, and the CPU's features; needs only the core."""

from __future__ import annotations

import os
import sys
from typing import Any

from lilliput.cli.table import Table
from lilliput.export.targets.table import packages
from lilliput.extras import versions_of
from lilliput.report.environment import environment

# distribution, its purpose, and the extra that installs it
_PACKAGES = (
    ("torch", "PyTorch models", "torch"),
    ("keras", "Keras models", "keras"),
    ("tensorflow", "Keras on TensorFlow, LiteRT files", "litert"),
    ("jax", "Keras on JAX", ""),
    ("numpy", "everything but configs", "torch"),
    *((package.name, package.purpose, package.extra) for package in packages()),
    ("scipy", "searches for a budget", "search"),
    ("optuna", "searches with strategy 'bayes'", "search"),
    ("scikit-learn", "the digits of 'lilliput demo'", "demo"),
    ("pydantic", "configs and recipes", ""),
    ("safetensors", "saved models", ""),
    ("jinja2", "HTML reports", ""),
    ("typer", "the command line", "cli"),
    ("rich", "colours and progress bars", "cli"),
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


def examine() -> dict[str, Any]:
    """Return the output of ``lilliput doctor --json``."""
    found = environment()
    packages = [_package(*entry) for entry in _PACKAGES]
    missing = [row for row in packages if row["version"] is None]
    return {
        **found,
        "packages": packages,
        "memory_bytes": total_memory(),
        "advice": _advice(found, missing),
    }


def describe(data: dict[str, Any]) -> list[Any]:
    """Return the same for people, as tables and text."""
    rows = [
        [row["name"], row["version"] or "missing", row["for"], row["install"] or ""]
        for row in data["packages"]
    ]
    flags = [
        [name, "yes" if has else "no", _MEANING.get(name, "")]
        for name, has in data["flags"].items()
    ]
    memory = data["memory_bytes"]
    machine = [
        ["Python", f"{data['python']} ({sys.executable})"],
        ["system", f"{data['os']}, {data['machine']}"],
        ["processor", data["cpu"]],
        ["cores", str(data["cores"])],
        ["threads", _threads(data["cores"])],
        ["memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"],
    ]
    parts = [Table(["", ""], machine), "", Table(["package", "version", "for", "install"], rows)]
    parts += ["", Table(["instructions", "", ""], flags)] if flags else []
    return [*parts, "", *data["advice"]] if data["advice"] else parts


def total_memory() -> int | None:
    """Return the bytes of memory, or None if the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _package(name: str, purpose: str, extra: str) -> dict[str, Any]:
    found = next(iter(versions_of((name, *_ALSO.get(name, ()))).values()), None)
    wanted = f"lilliput[{extra}]" if extra else name
    install = None if found else f"pip install '{wanted}'" if extra else f"pip install {wanted}"
    return {"name": name, "version": found, "for": purpose, "install": install}


def _threads(cores: int) -> str:
    limit = os.environ.get("OMP_NUM_THREADS")
    return f"{limit}, set by OMP_NUM_THREADS" if limit else f"{cores}, one per core"


def _advice(found: dict[str, Any], missing: list[dict[str, Any]]) -> list[str]:
    """Return the resulting advice as text."""
    gone = {row["name"] for row in missing}
    advice = []
    if {"torch", "keras"} <= gone:
        advice.append("no framework: pip install 'lilliput[torch]' or 'lilliput[keras]'")
    flags = found["flags"]
    if flags and not (flags.get("vnni") or flags.get("amx") or flags.get("dotprod")):
        advice.append(
            "int8 here gives smaller files, but less speedup than on a processor with VNNI or dotprod"
        )
    return advice
