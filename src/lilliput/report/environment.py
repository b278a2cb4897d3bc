"""The environment of a measurement: versions, processor, threads, system.

>>> found = environment()
>>> found["cores"] >= 1, "lilliput" in found["packages"]
(True, True)
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from lilliput.export.targets.table import packages
from lilliput.extras import versions_of

PACKAGES = (
    *("lilliput", "torch", "keras", "tensorflow", "tensorflow-cpu", "jax", "numpy", "safetensors"),
    *(package.name for package in packages()),
)

# Instructions used by integer and low-precision kernels, and their names on Linux.
_X86 = {
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "vnni": ("avx512_vnni", "avx_vnni"),
    "amx": ("amx_int8", "amx_tile"),
}
_ARM = {
    "neon": ("asimd", "neon"),
    "dotprod": ("asimddp",),
    "i8mm": ("i8mm",),
    "sve": ("sve",),
}
_ARM_ON_MACOS = {"dotprod": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM"}


def environment() -> dict[str, Any]:
    """Return the environment of this process, as plain data.

    Returns
    -------
    dict
        ``packages`` (name to version, of those installed), ``python``, ``os``, ``machine``, ``cpu``,
        ``flags`` (from ``avx2``, ``vnni``, … to whether the processor has it; empty if that
        cannot be read), ``cores`` available to this process, and ``threads`` of its framework
        (None before one is imported).
    """
    return {
        "packages": versions_of(PACKAGES),
        "python": platform.python_version(),
        "os": _system(),
        "machine": platform.machine(),
        "cpu": _processor(),
        "flags": processor_flags(),
        "cores": usable_cores(),
        "threads": _threads(),
    }


def usable_cores() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_flags() -> dict[str, bool]:
    """Return which instructions the processor has; empty if the system does not report them."""
    names = _ARM if platform.machine().lower() in ("arm64", "aarch64") else _X86
    if sys.platform == "darwin":
        return _flags_on_macos(names)
    held = set(_line_of_cpuinfo("flags", "Features").split())
    if not held:
        return {}
    return {flag: any(name in held for name in known) for flag, known in names.items()}


def _system() -> str:
    if hasattr(platform, "freedesktop_os_release"):
        try:
            return str(platform.freedesktop_os_release()["PRETTY_NAME"])
        except (OSError, KeyError):
            pass
    return f"{platform.system()} {platform.release()}"


def _processor() -> str:
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    return _line_of_cpuinfo("model name", "Model") or platform.processor() or platform.machine()


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else None


def _line_of_cpuinfo(*keys: str) -> str:
    """Return the first line of /proc/cpuinfo with one of these keys."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def _flags_on_macos(names: dict[str, tuple[str, ...]]) -> dict[str, bool]:
    if names is _ARM:
        return {"neon": True} | {k: _sysctl(v) == "1" for k, v in _ARM_ON_MACOS.items()}
    held = _sysctl("machdep.cpu.leaf7_features").lower().split()
    return {"avx2": "avx2" in held, "avx512": "avx512f" in held} if held else {}


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
