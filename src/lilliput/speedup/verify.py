"""Compare a shrunk model with the masked one: every tensor of their outputs, in double precision."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lilliput.backends.torch.sidecar import SIDECAR, mask_of
from lilliput.backends.torch.weights import zero_
from lilliput.errors import UnsupportedModelError
from lilliput.speedup.caches import drop_caches, has_tables
from lilliput.speedup.capture import Inputs, as_inputs, fresh, quiet, shared_copy
from lilliput.speedup.compare import relative_error, tensors_of
from lilliput.speedup.cuts import Cut, by_tensor, cut_all
from lilliput.speedup.precision import Load, keep, load_in_parts

log = logging.getLogger("lilliput")
_SEED = 20_230
_ROWS = 256  # of a weight that are added to at once

Precision = Literal["parts", "double", "own"]  # of which "parts" is double, with less in memory


@dataclass(frozen=True, eq=False)
class Reference:
    """What the masked model answers, on the example inputs and on others like them."""

    inputs: tuple[Inputs, ...]
    outputs: tuple[
        list[list[Tensor]], ...
    ]  # with torch's fused kernels, and without if it has some
    precision: Precision
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
                twin = self.cast(model).eval()
                found.append(_run(twin, inputs, self.precision, self.tolerance, False))
            except Exception:
                return None
        return found

    def cast(self, model: nn.Module, load: Load = keep) -> nn.Module:
        """Return a copy of a model in the precision of the comparison, each tensor given by ``load``."""
        return _cast(model, self.precision, load)


def _cast(model: nn.Module, precision: Precision, load: Load) -> nn.Module:
    twin = shared_copy(model)
    if precision == "parts":
        return load_in_parts(twin, load)
    for name, tensor in list(twin.named_parameters()):
        tensor.data = load(name, tensor.data.clone())
    twin = twin.double() if precision == "double" else twin
    drop_caches(twin)  # tables are made of what was loaded
    return twin


class Noise:
    """Noise for every weight that stays, so that no zero or one hides what it does."""

    def __init__(self, model: nn.Module, cuts: Sequence[Cut]) -> None:
        self.cuts = by_tensor(cuts)
        self.model = model
        self.parameters = {
            name: p.detach()
            for name, p in model.named_parameters()
            if SIDECAR not in name.split(".") and p.is_floating_point()
        }

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Add noise to a weight of the masked model, zero where it is masked or cut."""
        if name not in self.parameters:
            return tensor
        for rows, noise in self._rows(name):
            tensor[rows] += noise  # in parts: the noise of all of a large weight is a large weight
        for cut in self.cuts.get(name, ()):
            cut.clear_(tensor)
        path, _, leaf = name.rpartition(".")
        mask = mask_of(self.model.get_submodule(path), leaf)
        if mask is not None:
            zero_(tensor, mask)
        return tensor

    def add_cut(self, name: str, tensor: Tensor) -> Tensor:
        """Add to a weight of a shrunk model what is left of the noise."""
        if name not in self.parameters:
            return tensor
        parameter = self.parameters[name]
        noise = self.add(name, torch.zeros(parameter.shape, device=parameter.device))
        return tensor.add_(cut_all(noise, self.cuts.get(name, [])))

    def _rows(self, name: str) -> Iterator[tuple[Any, Tensor]]:
        """Yield the noise of a parameter, and the rows that it is for."""
        parameter = self.parameters[name]
        spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
        generator = torch.Generator().manual_seed(_SEED + zlib.crc32(name.encode()))
        for start in range(0, len(parameter) if parameter.dim() else 1, _ROWS):
            rows = slice(start, start + _ROWS) if parameter.dim() else ()
            noise = torch.randn(parameter[rows].shape, generator=generator)
            yield rows, noise.mul_(0.1 * spread or 0.1).to(parameter.device)


def _answers(model: nn.Module, inputs: Inputs, count: int) -> list[list[Tensor]]:
    """Return what a model answers, and if ``count`` is 2 again without torch's fused kernels."""
    found = []
    for context in (nullcontext(), quiet())[:count]:
        args, kwargs = fresh(inputs)
        with context, torch.no_grad():
            found.append([x.clone() for x in tensors_of(model(*args, **kwargs))])
    return found


def _has_fast_path(model: nn.Module) -> bool:
    """Whether torch may run parts of a model by fused kernels in evaluation."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def make_reference(
    model: nn.Module, example_inputs: Any, has_casts: bool, load: Load = keep, *, is_steady: bool
) -> Reference:
    """Run the masked model, in double precision if it can; twice, unless its answers are known to stay."""
    given = as_inputs(example_inputs)
    precisions: tuple[Precision, ...] = ("double",) if has_tables(model) else ("parts", "double")
    for precision in precisions:
        twin = _cast(model, precision, load).eval()
        try:
            tolerance = 1e-5 if has_casts else 1e-10
            return _run(twin, _as_double(given), precision, tolerance, is_steady)
        except UnsupportedModelError:
            raise
        except Exception as error:
            log.debug("speedup: %s precision: %s", precision, error)
    twin = _cast(model, "own", load).eval()  # which it insists on
    return _run(twin, given, "own", 1e-5, is_steady)


def _run(
    model: nn.Module, given: Inputs, precision: Precision, tolerance: float, is_steady: bool
) -> Reference:
    inputs: list[Inputs] = []
    outputs: list[list[list[Tensor]]] = []
    paths = 2 if _has_fast_path(model) else 1
    for candidate in (given, _varied(given)):
        try:
            answers = _answers(model, candidate, paths)
            answer = answers[0]
            again = answer if inputs or is_steady else _answers(model, candidate, 1)[0]
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
    return Reference(tuple(inputs), tuple(outputs), precision, tolerance)


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
