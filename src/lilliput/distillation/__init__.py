"""Distillation: a loss is one file, and the distiller applies those that rules name."""
