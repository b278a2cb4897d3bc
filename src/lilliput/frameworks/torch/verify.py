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
from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.cutting import clear_, cut_all
from lilliput.frameworks.torch.precision import Load, keep, load_in_parts
from lilliput.frameworks.torch.sidecar import is_ours, mask_of
from lilliput.frameworks.torch.weights import zero_
from lilliput.graph.cuts import Cut, by_tensor

log = logging.getLogger("lilliput")
_SEED = 20_230
_ROWS = 256  # of a weight that noise is added to at once
_PERIOD = 65_537  # of noise: a prime, so that neighbouring rows and channels get other numbers

Precision = Literal["parts", "double", "own"]  # "parts" is double precision with less memory


@dataclass(frozen=True, eq=False)
class Reference:
    """The outputs of the masked model for some inputs."""

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
        """Return the masked model's outputs for batches of one and of seven, or None if it does not run."""
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
        """Raise if the masked model returns different outputs for the same inputs."""
        twin = Twin(shared_copy(model).eval(), self.precision)
        if max(self.error(twin.model) for _ in range(2)) > self.tolerance:
            raise UnsupportedModelError(
                f"{type(model).__name__} returns different outputs for the same inputs in "
                "evaluation; without stable outputs nothing can be checked."
            )


class Twin:
    """A model in the precision of a comparison.

    Parameters
    ----------
    model : torch.nn.Module
        Its own copy, since its tensors are replaced.
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
        drop_caches(model)  # tables were computed from other numbers

    def keeps_tables(self) -> bool:
        """Whether the model keeps something computed from the weights after a run."""
        return any(True for module in self.model.modules() for _ in cached_tensors(module))

    def use(self, load: Load) -> None:
        """Use other weights: the result of a function for each."""
        self._load = load
        if self.precision != "parts":
            for name, tensor in self.model.named_parameters():
                tensor.data = load(name, tensor.data)
            drop_caches(self.model)


class Noise:
    """Noise for every kept weight, so that no zero or one hides an error."""

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
            tensor[rows] += noise  # in parts: noise for all of a large weight would be as large
        for cut in self.cuts.get(name, ()):
            clear_(cut, tensor)
        path, _, leaf = name.rpartition(".")
        mask = mask_of(self.model.get_submodule(path), leaf)
        if mask is not None:
            zero_(tensor, mask)
        return tensor

    def add_cut(self, name: str, tensor: Tensor) -> Tensor:
        """Add the kept part of the noise to a weight of a shrunk model."""
        if name not in self.parameters:
            return tensor
        parameter = self.parameters[name]
        noise = self.add(name, torch.zeros(parameter.shape, device=parameter.device))
        return tensor.add_(cut_all(noise, self.cuts.get(name, [])))

    def _rows(self, name: str) -> Iterator[tuple[Any, Tensor]]:
        """Yield the noise of a parameter, and its rows."""
        parameter = self.parameters[name]
        if name not in self._spreads:
            self._spreads[name] = float(parameter.std()) if parameter.numel() > 1 else 0.0
        table = self._table * (0.35 * self._spreads[name] or 0.35)  # a tenth of the deviation
        start = zlib.crc32(name.encode())
        for first in range(0, len(parameter) if parameter.dim() else 1, _ROWS):
            rows = slice(first, first + _ROWS) if parameter.dim() else ()
            shape = parameter[rows].shape
            noise = table.roll(-(start % _PERIOD)).repeat(shape.numel() // _PERIOD + 1)
            yield rows, noise[: shape.numel()].view(shape).to(parameter.device)
            start += shape.numel()


def _answers(model: nn.Module, inputs: Inputs, count: int) -> list[list[Tensor]]:
    """Return the outputs of a model, and if ``count`` is 2 again without torch's fused kernels."""
    found = []
    for context in (nullcontext(), quiet())[:count]:
        args, kwargs = fresh(inputs)
        with context, torch.no_grad():
            found.append([x.clone() for x in tensors_of(model(*args, **kwargs))])
    return found


def _has_fast_path(model: nn.Module) -> bool:
    """Whether torch may run parts of a model with fused kernels in evaluation."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def make_references(
    model: nn.Module, example_inputs: Any, has_casts: bool, noise: Load | None = None
) -> list[Reference]:
    """Run the masked model, in double precision if possible, and again with noise if there is some."""
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
    return _references(model, given, "own", 1e-5, noise)  # which it requires


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
            f"{type(model).__name__} returns no finite number for the example inputs, so nothing can be "
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
    """Return inputs with other floating-point numbers, in case the given ones reveal little."""
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
