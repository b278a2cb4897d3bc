"""Notes for the user on a file of any format."""

from __future__ import annotations

from lilliput.frameworks.exporting.layer import some_of
from lilliput.frameworks.exporting.simulation import Placement


def notes_on(names: list[str], text: str) -> list[str]:
    """Return a note on some layers, or an empty list if there are none."""
    return [f"{some_of(names)}: {text}"] if names else []


def note_defaults(placements: list[Placement]) -> list[str]:
    """Return notes on layers that are quantized although no rule names them."""
    notes = []
    for placement in placements:
        decisions = placement.wrapper.compressor.selection.decisions if placement.is_weight else ()
        for decision in decisions:
            if decision.default and decision.layer.name == placement.wrapper.name:
                notes.append(
                    f"{placement.wrapper.name}: {decision.default}, which is quantized to 8 bits by default. "
                    'To keep it in float, add the rule {"op_types": ["Embedding"], "exclude": True}.'
                )
    return notes
