"""Current classes in the form of a generation: the base and the constructors of each."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner, SecondStackPruner
from lilliput.compat.nni.classes.admm import IterationsInside, SecondIterationsInside
from lilliput.compat.nni.classes.constructors import FORMS
from lilliput.compat.nni.classes.iterative import IterativePruner
from lilliput.compat.nni.classes.lottery import RoundsByHand, RoundsInside
from lilliput.compat.nni.classes.movement import MovementForm, ThirdStackMovement
from lilliput.compat.nni.classes.observing import ObservingQuantizer
from lilliput.compat.nni.classes.stacks import Adapted, AdaptedQuantizer
from lilliput.compat.nni.classes.stepwise import StepwisePruner
from lilliput.compat.nni.classes.third import (
    ThirdStackCalibration,
    ThirdStackPruner,
    ThirdStackQuantizer,
)
from lilliput.compat.nni.imports.tables import SEARCHING
from lilliput.pruning.admm import ADMMPruner
from lilliput.pruning.lottery import LotteryTicketPruner
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.torch import Compressor, MovementPruner, Pruner, PTQQuantizer, Quantizer

BASES: dict[str, dict[str, type]] = {
    "first": {"compressor": Adapted, "pruner": AdaptedPruner, "quantizer": AdaptedQuantizer},
    "second": {"compressor": Adapted, "pruner": SecondStackPruner, "quantizer": AdaptedQuantizer},
    "third": {"compressor": Adapted, "pruner": ThirdStackPruner, "quantizer": ThirdStackQuantizer},
}


@cache
def searching_form(name: str, stack: str) -> type:
    """Return a searching pruner in the form of a generation; v3 had none of them."""
    stack = "first" if stack == "first" else "second"
    module, first, second = SEARCHING[name]
    found = import_module(f"lilliput.compat.nni.classes.{module}")
    base: type = getattr(found, first if stack == "first" else second)
    members = {"__doc__": inspect.getdoc(base), "forms": FORMS[stack][name]}
    return type(name, (base,), {"__module__": base.__module__, **members})


def adapt(cls: type[Compressor], stack: str) -> type:
    """Return the current class in the form of a generation."""
    base = BASES[stack][cls.kind]
    if cls in (Compressor, Pruner, Quantizer):
        return base
    if stack != "third" and issubclass(cls, LotteryTicketPruner):  # which v3 did not have
        base = RoundsByHand if stack == "first" else RoundsInside
    elif stack != "third" and issubclass(cls, ADMMPruner):  # nor this one
        base = IterationsInside if stack == "first" else SecondIterationsInside
    elif stack == "third" and issubclass(cls, ScheduledPruner):
        base = StepwisePruner
    elif stack == "second" and issubclass(cls, ScheduledPruner):
        base = IterativePruner
    elif issubclass(cls, MovementPruner) and stack != "first":
        base = ThirdStackMovement if stack == "third" else MovementForm
    elif stack == "third" and issubclass(cls, PTQQuantizer):
        base = ThirdStackCalibration
    elif issubclass(cls, PTQQuantizer):
        base = ObservingQuantizer
    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__doc__": inspect.getdoc(cls),
        "adapts": cls,
        "forms": FORMS[stack].get(cls.__name__, ()),
    }
    return type(cls.__name__, (base, cls), members)
