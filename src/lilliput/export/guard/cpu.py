"""The CPUs a file targets: with VNNI, or without, where sums of 8-bit products saturate in 16 bits."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError

_CPUINFO = Path("/proc/cpuinfo")
_X86 = frozenset({"x86_64", "amd64", "x86", "i386", "i486", "i586", "i686"})


@dataclass(frozen=True)
class Cpu:
    """The CPUs that a file is written for.

    Parameters
    ----------
    has_vnni : bool
        Whether they accumulate products of 8-bit integers in 32 bits: x86 with VNNI, and ARM. A file for CPUs
        without it computes the same on both, on data like those of the calibration.
    is_this : bool
        Whether this was detected on the exporting CPU instead of passed as ``assume_vnni``.
    """

    has_vnni: bool
    is_this: bool

    def to_dict(self) -> dict[str, bool]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        source = "like this one" if self.is_this else f"assume_vnni={self.has_vnni}"
        return f"CPUs {'with' if self.has_vnni else 'without'} VNNI ({source})"


def cpu_for(assume_vnni: Any, target: str) -> Cpu | None:
    """Return the CPUs to export for; None for a file that must match the simulation exactly.

    Examples
    --------
    >>> print(cpu_for(False, "onnxruntime"))
    CPUs without VNNI (assume_vnni=False)
    """
    if assume_vnni is not None and not isinstance(assume_vnni, bool):
        raise ExportError(f"assume_vnni: received {assume_vnni!r}, expected True, False or None.")
    if assume_vnni is None:
        return None if target == "generic" else Cpu(cpu_has_wide_dot(), is_this=True)
    return Cpu(assume_vnni, is_this=False)


def cpu_has_wide_dot() -> bool:
    """Whether this CPU accumulates products of 8-bit integers in 32 bits; False if unknown."""
    machine = platform.machine().lower()
    if machine not in _X86 or not _CPUINFO.is_file():
        return machine not in {"", *_X86}
    return not {"avx512_vnni", "avx_vnni"}.isdisjoint(_CPUINFO.read_text().split())
