"""The engine's protocols, implemented for torch."""
