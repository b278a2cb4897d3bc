"""Compare a shrunk model with the masked one: every tensor of their outputs, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lilliput.backends.torch.sidecar import SIDECAR
from lilliput.errors import UnsupportedModelError
from lilliput.speedup.capture import Inputs, as_inputs, copy_model, quiet
from lilliput.speedup.compare import relative_error, tensors_of
from lilliput.speedup.cuts import Cut

_SEED = 20_230


@dataclass(frozen=True, eq=False)
class Reference:
    """What the masked model answers, on the example inputs and on others like them."""

    inputs: tuple[Inputs, ...]
    outputs: tuple[
        list[list[Tensor]], ...
    ]  # with torch's fused kernels, and without if it has some
    dtype: torch.dtype
    tolerance: float

    def error(self, model: nn.Module) -> float:
        """Return the largest relative error of a model in eval mode; it may raise."""
        worst = 0.0
        for inputs, answers in zip(self.inputs, self.outputs, strict=True):
            for received, expected in zip(
                _answers(model, inputs, len(answers)), answers, strict=True
            ):
                worst = max(worst, relative_error(expected, received))
        return worst

    def with_other_batches(self, model: nn.Module) -> list[Reference] | None:
        """Return what the masked model answers to one input and to many, None if it cannot."""
        found = []
        for size in (1, 7):
            inputs = tree_map(lambda x, size=size: _batch(x, size), self.inputs[0])
            try:
                found.append(_run(self.cast(model).eval(), inputs, self.dtype, self.tolerance))
            except Exception:
                return None
        return found

    def cast(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model in the precision of the comparison."""
        twin = copy_model(model)
        return twin.double() if self.dtype == torch.float64 else twin


@torch.no_grad()
def disturb(model: nn.Module, cuts: Sequence[Cut]) -> None:
    """Add noise to every weight that stays, so that no zero or one hides what it does."""
    generator = torch.Generator().manual_seed(_SEED)
    for name, parameter in model.named_parameters():
        if SIDECAR in name.split(".") or not parameter.is_floating_point():
            continue
        spread = float(parameter.detach().double().std()) if parameter.numel() > 1 else 0.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        noise = (noise * (0.1 * spread or 0.1)).to(parameter.device, parameter.dtype)
        for cut in cuts:
            if cut.tensor == name:
                noise = noise * cut.mask(noise)
        parameter.add_(noise)


def _answers(model: nn.Module, inputs: Inputs, count: int) -> list[list[Tensor]]:
    """Return what a model answers, and if ``count`` is 2 again without torch's fused kernels."""
    args, kwargs = inputs
    found = []
    for context in (nullcontext(), quiet())[:count]:
        with context, torch.no_grad():
            found.append([x.clone() for x in tensors_of(model(*args, **kwargs))])
    return found


def _has_fast_path(model: nn.Module) -> bool:
    """Whether torch may run parts of a model by fused kernels in evaluation."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def make_reference(model: nn.Module, example_inputs: Any, has_casts: bool) -> Reference:
    """Run the masked model, in double precision if it can."""
    given = as_inputs(example_inputs)
    twin = copy_model(model).eval()
    try:
        return _run(twin.double(), _as_double(given), torch.float64, 1e-5 if has_casts else 1e-10)
    except UnsupportedModelError:
        raise
    except Exception:  # it insists on its own precision
        twin = copy_model(model).eval()
        return _run(twin, given, torch.float32, 1e-5)


def _run(model: nn.Module, given: Inputs, dtype: torch.dtype, tolerance: float) -> Reference:
    inputs: list[Inputs] = []
    outputs: list[list[list[Tensor]]] = []
    paths = 2 if _has_fast_path(model) else 1
    for candidate in (given, _varied(given)):
        try:
            answers = _answers(model, candidate, paths)
            answer = answers[0]
            again = answer if inputs else _answers(model, candidate, 1)[0]
        except Exception:
            if not inputs:
                raise
            continue
        if not any(x.is_floating_point() and x.isfinite().any() for x in answer) and not inputs:
            raise UnsupportedModelError(
                f"{type(model).__name__} gives no finite number for the example inputs, so nothing can be "
                "checked; expected inputs as it is used with."
            )
        if relative_error(answer, again) > tolerance:
            raise UnsupportedModelError(
                f"{type(model).__name__} runs on the same inputs twice and answers differently, in "
                "evaluation; without a stable answer nothing can be checked."
            )
        if inputs and any(x.is_floating_point() and not x.isfinite().all() for x in answer):
            continue
        inputs.append(candidate)
        outputs.append(answers)
    return Reference(tuple(inputs), tuple(outputs), dtype, tolerance)


def _batch(x: Any, size: int) -> Any:
    """Return a tensor with another number of rows."""
    if not isinstance(x, Tensor) or not x.dim():
        return x
    return x[torch.arange(size) % len(x)]


def _as_double(inputs: Inputs) -> Inputs:
    args, kwargs = inputs
    return tuple(_double(x) for x in args), {k: _double(x) for k, x in kwargs.items()}


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _varied(inputs: Inputs) -> Inputs:
    """Return inputs with other numbers where they are floating point, for inputs that show little."""
    generator = torch.Generator().manual_seed(_SEED)

    def vary(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return (x + noise.to(x.device, x.dtype) * (x.std() if x.numel() > 1 else 1) + 0.1).to(
            x.dtype
        )

    args, kwargs = inputs
    return tuple(vary(x) for x in args), {k: vary(x) for k, x in kwargs.items()}
