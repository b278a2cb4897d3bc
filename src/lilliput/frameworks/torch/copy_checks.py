"""Check that copies of a model, on which everything is tried, compute the same as the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.caches import cached_tensors, forget_states, written_by_modes
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.copies import shared_copy, whole_shared_copy
from lilliput.frameworks.torch.example_inputs import Inputs, as_inputs, fresh

_PRECISE = (torch.float32, torch.float64)


def check_modes(model: nn.Module) -> None:
    """Raise if a model changes its weights when it switches to evaluation, where everything is compared."""
    if not any(x.training for x in model.modules()) or not written_by_modes(model):
        return
    twin = shared_copy(model)
    before = {name: p.detach().clone() for name, p in written_by_modes(twin).items()}
    twin.eval()
    for name, parameter in written_by_modes(twin).items():
        if not torch.equal(parameter, before[name]):
            raise UnsupportedModelError(
                f"{type(model).__name__} changes {name!r} when it switches to evaluation, as layers do that "
                "merge other weights into it, but is in training mode; call model.eval() first."
            )


def check_copies(model: nn.Module, example_inputs: Any) -> None:
    """Raise if a model's outputs differ without the tables that it keeps, as in its copies.

    All later comparisons use copies; this verifies that copies compute the same as the model.
    """
    cached = [t for module in model.modules() for t in cached_tensors(module)]
    if not cached:
        return
    twin = whole_shared_copy(model)
    forget_states(twin)
    given = as_inputs(example_inputs)
    with quiet(), torch.no_grad():
        try:
            wanted, again = (_outputs(twin.eval(), given) for _ in range(2))
        except Exception:  # for example tables of another size, which must be dropped
            return
        received = _outputs(shared_copy(model).eval(), given)
    error, limit = relative_error(wanted, received), 1e-3
    if not all(x.dtype in _PRECISE for x in wanted):
        limit = 0.05
    if not error <= limit and relative_error(wanted, again) <= limit:  # its outputs are not random
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps tensors outside its state, in dicts or attributes called caches, "
            f"and its outputs change without them (by {error:.1e} of the largest). They are assumed to be "
            "tables that can be recomputed. Register tensors that must be kept as buffers."
        )


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    args, kwargs = fresh(inputs)
    return [x.clone() for x in tensors_of(model(*args, **kwargs))]
