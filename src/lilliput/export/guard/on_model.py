"""Apply the saturation guard to all quantizers of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lilliput.export.guard.cpu import Cpu
from lilliput.export.guard.pairs import ENOUGH
from lilliput.export.guard.saturation import candidates, guard
from lilliput.export.result import Guarded
from lilliput.frameworks import backend_of
from lilliput.frameworks.exporting.simulation import (
    Array,
    Inputs,
    Simulating,
    Simulation,
    to_array,
)
from lilliput.ops.namespace import namespace

Scales = dict[tuple[str, str], Array]
_SCALES = ("weight_scale", "weight_coarse")


def quantizers_on(model: Any) -> list[Any]:
    """Return the quantizers attached to a model."""
    wrappers = backend_of(model).quantizers_in(model)
    return list({id(w.compressor): w.compressor for w in wrappers if w.compressor}.values())


def sample_inputs(model: Any) -> list[Inputs]:
    """Return the calibration inputs that were kept."""
    return [
        x for quantizer in quantizers_on(model) for x in getattr(quantizer, "sample_inputs", ())
    ]


def guard_model(simulation: Simulation, batches: Sequence[Inputs], change: bool) -> list[Guarded]:
    """Return which layers could saturate on data like these; ``change`` the weights to prevent it."""
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


def simulate_guarded(
    part: Simulating, model: Any, inputs: Inputs, batches: Sequence[Inputs], cpu: Cpu | None
) -> tuple[Simulation, list[Guarded]]:
    """Simulate a model with weights that do not saturate on the target CPUs."""
    simulation = part.simulate(model, inputs)
    guarded = guard_model(simulation, [inputs, *batches], not cpu.has_vnni) if cpu else []
    if any(row.is_changed for row in guarded):
        simulation = part.simulate(model, inputs)
    return simulation, guarded


def may_saturate(model: Any) -> bool:
    """Whether any layer multiplies 8-bit integers, so that the CPU matters."""
    return any(True for quantizer in quantizers_on(model) for _ in candidates(quantizer))


@contextmanager
def kept_if_done(model: Any) -> Iterator[None]:
    """Restore the scales of all weights if an error occurs."""
    held = scales_of(model)
    try:
        yield
    except BaseException:
        set_scales(model, held)
        raise


def scales_of(model: Any) -> Scales:
    """Return the scales that the guard may change, by layer and tensor name."""
    return {
        (wrapper.name, name): np.array(to_array(tensor)) for wrapper, name, tensor in _held(model)
    }


def set_scales(model: Any, scales: Mapping[tuple[str, str], Array]) -> None:
    """Restore scales."""
    for wrapper, name, tensor in list(_held(model)):
        if (wrapper.name, name) in scales:
            value = namespace(tensor).from_numpy(scales[wrapper.name, name], tensor)
            wrapper.set_attribute(name, value)


def _held(model: Any) -> Iterator[tuple[Any, str, Any]]:
    for quantizer in quantizers_on(model):
        for wrapper in quantizer.get_modules_wrapper():
            tensors = wrapper.tensors()
            yield from ((wrapper, name, tensors[name]) for name in _SCALES if name in tensors)
