"""Apply the saturation guard to all quantizers on a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from lilliput.export.guard.pairs import ENOUGH
from lilliput.export.guard.saturation import candidates, guard
from lilliput.export.result import Guarded
from lilliput.export.trace import TorchSimulation
from lilliput.frameworks.torch.capture import Inputs, as_inputs
from lilliput.frameworks.torch.wrapper import QuantizerModuleWrapper


def quantizers_on(model: nn.Module) -> list[Any]:
    """Return the quantizers at work on a model."""
    wrappers = [m for m in model.modules() if isinstance(m, QuantizerModuleWrapper)]
    return list({id(w.compressor): w.compressor for w in wrappers if w.compressor}.values())


def sample_inputs(model: nn.Module) -> list[Inputs]:
    """Return what the model was called with in calibration, as far as it was kept."""
    return [
        x for quantizer in quantizers_on(model) for x in getattr(quantizer, "sample_inputs", ())
    ]


def like_example(batch: Any, inputs: Inputs) -> Inputs:
    """Return a batch as inputs; of inputs with labels, the inputs."""
    args, kwargs = as_inputs(batch)
    count = len(inputs[0])
    return (args[:count], kwargs) if count and not kwargs else (args, kwargs)


def guard_model(simulation: TorchSimulation, batches: list[Inputs], change: bool) -> list[Guarded]:
    """Return which layers could saturate on data like these; ``change`` the weights so that none does."""
    found: list[Guarded] = []
    for quantizer in quantizers_on(simulation.model):
        rows = guard(
            quantizer,
            batches,
            lambda _, inputs: simulation.look_at(inputs),
            change=change,
            enough=ENOUGH,
        )
        if any(row.is_changed for row in rows):
            simulation.forget()  # the next quantizer sees the new scales
        found += rows
    return found


def may_saturate(model: nn.Module) -> bool:
    """Whether any layer multiplies 8-bit integers, so that it matters which CPU does."""
    return any(True for quantizer in quantizers_on(model) for _ in candidates(quantizer))


@contextmanager
def kept_if_done(model: nn.Module) -> Iterator[None]:
    """Put the scales of all weights back if something goes wrong."""
    wrappers = [w for quantizer in quantizers_on(model) for w in quantizer.get_modules_wrapper()]
    names = ("weight_scale", "weight_coarse")
    held = [
        (w, n, w.tensors()[n].detach().clone()) for w in wrappers for n in names if n in w.tensors()
    ]
    try:
        yield
    except BaseException:
        for wrapper, name, value in held:
            wrapper.set_attribute(name, value)
        raise
