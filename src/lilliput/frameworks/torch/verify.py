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

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.caches import cached_tensors, drop_caches, has_tables
from lilliput.frameworks.torch.capture import Inputs, as_inputs, fresh, quiet, shared_copy
from lilliput.frameworks.torch.chance import kinds_of_luck
from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.cutting import clear_, cut_all
from lilliput.frameworks.torch.precision import Load, keep, load_in_parts
from lilliput.frameworks.torch.sidecar import is_ours, mask_of
from lilliput.frameworks.torch.weights import zero_
from lilliput.graph.cuts import Cut, by_tensor

log = logging.getLogger("lilliput")
_SEED = 20_230
_ROWS = 256  # of a weight that are added to at once
_PERIOD = 65_537  # of noise: a prime, so that neighbouring rows and channels get other numbers

Precision = Literal["parts", "double", "own"]  # of which "parts" is double, with less in memory


@dataclass(frozen=True, eq=False)
class Reference:
    """What the masked model answers to some inputs."""

    inputs: Inputs
    outputs: list[list[Tensor]]  # with torch's fused kernels, and without if it has some
    precision: Precision
    tolerance: float

    def error(self, model: nn.Module) -> float:
        """Return the largest relative error of a model in eval mode; it may raise."""
        answers = _answers(model, self.inputs, len(self.outputs))
        pairs = zip(self.outputs, answers, strict=True)
        return max(relative_error(expected, received) for expected, received in pairs)

    def with_other_batches(self, model: nn.Module) -> list[Reference] | None:
        """Return what the masked model answers to one input and to many, None if it cannot."""
        found = []
        for size in (1, 7):
            inputs = tree_map(lambda x, size=size: _batch(x, size), self.inputs)
            try:
                twin = Twin(shared_copy(model).eval(), self.precision)
                found.append(_run(twin.model, inputs, self.precision, self.tolerance))
            except Exception:
                return None
        return found

    def check_steady(self, model: nn.Module) -> None:
        """Raise if the masked model, called twice, gives different outputs for the same inputs."""
        twin = Twin(shared_copy(model).eval(), self.precision)
        if max(self.error(twin.model) for _ in range(2)) > self.tolerance:
            raise UnsupportedModelError(
                f"{type(model).__name__} runs on the same inputs twice and answers differently, in "
                "evaluation; without a stable answer nothing can be checked."
            )

    def check_chance(self, model: nn.Module, drawn: str) -> None:
        """Raise if the numbers that the masked model draws in evaluation change what it computes.

        ``drawn`` is what it draws them from.
        """
        twin = Twin(shared_copy(model).eval(), self.precision).model
        for _ in kinds_of_luck():
            try:
                is_same = self.error(twin) <= self.tolerance
            except Exception as failure:
                log.debug("speedup: it fails for some of the numbers that it draws: %r", failure)
                is_same = False
            if not is_same:
                raise UnsupportedModelError(
                    f"{type(model).__name__} draws from {drawn} in evaluation, and what it computes depends "
                    "on it, so that a check holds for one of its branches only; draw in training only "
                    "('if self.training:'), or fix the choice before the call. The model is as it was."
                )


class Twin:
    """A model in the precision of a comparison.

    Parameters
    ----------
    model : torch.nn.Module
        A copy of its own, since its tensors are replaced.
    precision : str
        Which precision.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model, self.precision = model, precision
        self._load: Load = keep
        if precision == "parts":
            load_in_parts(model, lambda name, tensor: self._load(name, tensor))
            return
        for tensor in model.parameters():
            tensor.data = tensor.data.clone()
        if precision == "double":
            model.double()
        drop_caches(model)  # tables are made of other numbers

    def keeps_tables(self) -> bool:
        """Whether something that was made of the weights stays with the model after a run."""
        return any(True for module in self.model.modules() for _ in cached_tensors(module))

    def use(self, load: Load) -> None:
        """Go over to other weights: what a function makes of each."""
        self._load = load
        if self.precision != "parts":
            for name, tensor in self.model.named_parameters():
                tensor.data = load(name, tensor.data)
            drop_caches(self.model)


class Noise:
    """Noise for every weight that stays, so that no zero or one hides what it does."""

    def __init__(self, model: nn.Module, cuts: Sequence[Cut]) -> None:
        self.cuts = by_tensor(cuts)
        self.model = model
        self.parameters = {
            name: p.detach()
            for name, p in model.named_parameters()
            if not is_ours(name) and p.is_floating_point()
        }
        self._spreads: dict[str, float] = {}
        self._table = torch.rand(_PERIOD, generator=torch.Generator().manual_seed(_SEED)) - 0.5

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Add noise to a weight of the masked model, zero where it is masked or cut."""
        if name not in self.parameters:
            return tensor
        for rows, noise in self._rows(name):
            tensor[rows] += noise  # in parts: the noise of all of a large weight is a large weight
        for cut in self.cuts.get(name, ()):
            clear_(cut, tensor)
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
        if name not in self._spreads:
            self._spreads[name] = float(parameter.std()) if parameter.numel() > 1 else 0.0
        table = self._table * (0.35 * self._spreads[name] or 0.35)  # a tenth of the spread
        start = zlib.crc32(name.encode())
        for first in range(0, len(parameter) if parameter.dim() else 1, _ROWS):
            rows = slice(first, first + _ROWS) if parameter.dim() else ()
            shape = parameter[rows].shape
            noise = table.roll(-(start % _PERIOD)).repeat(shape.numel() // _PERIOD + 1)
            yield rows, noise[: shape.numel()].view(shape).to(parameter.device)
            start += shape.numel()


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


def make_references(
    model: nn.Module, example_inputs: Any, has_casts: bool, noise: Load | None = None
) -> list[Reference]:
    """Run the masked model, in double precision if it can, and again with noise if there is some."""
    given = as_inputs(example_inputs)
    precisions: tuple[Precision, ...] = ("double",) if has_tables(model) else ("parts", "double")
    for precision in precisions:
        try:
            tolerance = 1e-5 if has_casts else 1e-10
            return _references(model, _as_double(given), precision, tolerance, noise)
        except UnsupportedModelError:
            raise
        except Exception as error:
            log.debug("speedup: %s precision: %s", precision, error)
    return _references(model, given, "own", 1e-5, noise)  # which it insists on


def _references(
    model: nn.Module, inputs: Inputs, precision: Precision, tolerance: float, noise: Load | None
) -> list[Reference]:
    twin = Twin(shared_copy(model).eval(), precision)
    own = _run(twin.model, inputs, precision, tolerance)
    if noise is None:
        return [own]
    if twin.keeps_tables():
        twin = Twin(shared_copy(model).eval(), precision)
    twin.use(noise)
    return [own, _run_varied(twin.model, inputs, precision, tolerance)]


def _run_varied(
    model: nn.Module, inputs: Inputs, precision: Precision, tolerance: float
) -> Reference:
    try:
        found = _run(model, _varied(inputs), precision, tolerance)
        if all(x.isfinite().all() for answer in found.outputs for x in answer):
            return found
    except Exception as error:
        log.debug("speedup: on other inputs: %s", error)
    return _run(model, inputs, precision, tolerance)


def _run(model: nn.Module, inputs: Inputs, precision: Precision, tolerance: float) -> Reference:
    answers = _answers(model, inputs, 2 if _has_fast_path(model) else 1)
    if not any(x.is_floating_point() and x.isfinite().any() for x in answers[0]):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no finite number for the example inputs, so nothing can be "
            "checked; pass realistic inputs."
        )
    return Reference(inputs, answers, precision, tolerance)


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
