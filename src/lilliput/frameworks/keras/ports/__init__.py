"""The engine's protocols, implemented for Keras."""
