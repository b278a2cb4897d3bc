"""Distillation: one file per loss, and the distiller that applies those that rules name."""
