"""What the sweeps share: every compressor, and an exact picture of a model to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lilliput.algorithms import list_pruners, list_quantizers, pruner, quantizer

# What has to be said beside a rule.
ARGUMENTS = {"movement": {"cool_down_beginning_step": 9}, "rigl": {"training_steps": 9}}


def told(name: str) -> Any:
    """Return the class of a pruner that needs no more than a model and rules."""
    cls = pruner(name)
    if name not in ARGUMENTS:
        return cls

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        cls.__init__(self, *args, **{**ARGUMENTS[name], **given})

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


PRUNERS = {name: told(name) for name in list_pruners()}
QUANTIZERS = {name: quantizer(name) for name in list_quantizers()}
# With an evaluator it is a tool of its own, with tests of its own; without, it prunes as the others.
ALL = {**PRUNERS, **QUANTIZERS}


def settings_of(cls: Any) -> dict[str, Any]:
    """Return what a rule of an algorithm has to say at least, and a little more."""
    keys = cls.rule.model_fields
    if "final_sparsity" in keys:
        return {"final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 0}
    if "sparsity" in keys:
        return {"sparsity": 0.5}
    return {"quant_bits": 4} if cls.kind == "quantizer" and "quant_scheme" in keys else {}


def fingerprint(model: nn.Module) -> list[Any]:
    """Return everything that an attack must not change, to be compared by ``==``."""
    picture: list[Any] = []
    for path, module in model.named_modules(remove_duplicate=False):
        hooks = [len(getattr(module, name)) for name in ("_forward_hooks", "_forward_pre_hooks")]
        picture.append((path, type(module), module.training, hooks, sorted(vars(module))))
    for kind in ("parameters", "buffers"):
        for name, tensor in getattr(model, f"named_{kind}")(remove_duplicate=False):
            identity = id(tensor) if kind == "parameters" else None  # an optimizer holds them
            picture.append((kind, name, identity, tensor.requires_grad, content(tensor)))
    return picture


def content(tensor: torch.Tensor) -> Any:
    """Return the bits of a tensor, or what it is if it has none."""
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin) or tensor.is_meta:
        return type(tensor).__name__
    flat = tensor.detach().cpu().reshape(-1).contiguous()
    return str(tensor.dtype), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    case: str
    kind: str  # 'works', 'refused', or what went wrong
    detail: str = ""

    @property
    def is_broken(self) -> bool:
        return self.kind not in ("works", "refused", "torch itself fails")


def summary(outcomes: list[Outcome]) -> str:
    """Return the counts by kind, and every case that broke."""
    kinds: dict[str, int] = {}
    for outcome in outcomes:
        kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
    broken = [
        f"  {x.case}: {x.kind}: {x.detail.partition(chr(10))[0][:200]}"
        for x in outcomes
        if x.is_broken
    ]
    return "\n".join([f"{len(outcomes)} cases: {kinds}", *broken])


Task = Callable[[], Any]
