"""Notes for the user on a file of any format."""

from __future__ import annotations

from lilliput.frameworks.exporting.simulation import Place


def note_defaults(places: list[Place]) -> list[str]:
    """Return notes on layers that are quantized although no rule names them."""
    notes = []
    for place in places:
        decisions = place.wrapper.compressor.selection.decisions if place.is_weight else ()
        for decision in decisions:
            if decision.default and decision.layer.name == place.wrapper.name:
                notes.append(
                    f"{place.wrapper.name}: {decision.default}, which is quantized to 8 bits by default. "
                    'To keep it in float, add the rule {"op_types": ["Embedding"], "exclude": True}.'
                )
    return notes
