"""Distillation: a loss is one file, and the distiller applies those that rules name."""

from lilliput.distillation.distiller import Distiller as Distiller

__all__ = ["Distiller"]
