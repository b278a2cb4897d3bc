"""Notes for the user on a LiteRT file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.export.keras.litert.draft import Draft
from lilliput.export.keras.litert.layers import count_operators
from lilliput.export.keras.litert.marks import fit_int8
from lilliput.export.keras.litert.weights import Found
from lilliput.export.notes import note_defaults, notes_on
from lilliput.frameworks.exporting.layer import Layer, some_of
from lilliput.frameworks.exporting.simulation import Simulation


def find_notes(
    draft: Draft, simulation: Simulation, weights: Mapping[int, Found], layers: list[Layer]
) -> list[str]:
    """Return notes on causes of a larger or slower file."""
    if not simulation.placements:
        return []
    integers, floats = count_operators(draft)
    notes = [f"{integers} operators on integers, {floats} on floats{_which(draft)}"]
    notes += note_defaults(simulation.placements)
    wide = [p.name for p in simulation.placements if not p.is_weight and fit_int8(p) is None]
    notes += notes_on(
        wide,
        "activations that do not fit into int8 are quantized in floating point, as in "
        "the simulation; use 8 bits or fewer and one scale per tensor for integer kernels.",
    )
    stored = {found.name for found in weights.values() if found.integers is not None}
    kept = [p.wrapper.name for p in simulation.placements if p.is_weight]
    left = [name for name in kept if name not in stored]
    if left:
        reasons = {found.name: found.reason for found in weights.values()}
        why = sorted({reasons.get(name, "they are inside a loop") for name in left})
        notes += notes_on(left, f"weights stored as float32: {'; '.join(why)}.")
    only = [x.name for x in layers if x.weight_only]
    notes += notes_on(
        only,
        "only the weight is stored as integers: the file is smaller, but not faster. "
        "Quantize 'input' and 'output' as well.",
    )
    return notes


def _which(draft: Draft) -> str:
    """Return the kinds of the float operators."""
    kinds: dict[str, Any] = {}
    for operator in draft.operators:
        kind = draft.kind(operator)
        is_float = operator.outputs and draft.dtype(operator.outputs[0]) == "float32"
        if is_float and kind not in ("QUANTIZE", "DEQUANTIZE"):
            kinds[kind] = kinds.get(kind, 0) + 1
    return ": " + some_of(sorted(kinds), 6) if kinds else ""
