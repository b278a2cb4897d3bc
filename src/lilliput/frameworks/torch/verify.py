"""Compare a shrunk model with the masked one: every tensor of their outputs, in double precision."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.caches import cached_tensors, drop_caches, has_tables
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.chance import kinds_of_luck
from lilliput.frameworks.torch.compare import relative_error, tensors_of
from lilliput.frameworks.torch.copies import shared_copy
from lilliput.frameworks.torch.example_inputs import Inputs, as_inputs, fresh
from lilliput.frameworks.torch.perturb import SEED
from lilliput.frameworks.torch.precision import Load, keep, load_in_parts, run_contiguous

log = logging.getLogger("lilliput")

_EXACT, _ROUGH = 1e-10, 1e-5  # largest errors, relative to the largest output

Precision = Literal["parts", "double", "own"]  # "parts" is double precision with less memory


@dataclass(frozen=True, eq=False)
class Reference:
    """The outputs of the masked model for some inputs, and how they are compared.

    Before the model has run, there are no outputs: that is a *setup*, which :func:`_run` completes.
    """

    inputs: Inputs
    outputs: list[list[Tensor]]  # with torch's fused kernels, and without if it has some
    precision: Precision
    tolerance: float

    def twin_of(self, model: nn.Module) -> Twin:
        """Return a copy of the masked model in this precision."""
        return Twin(shared_copy(model).eval(), self.precision)

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
                found.append(_run(self.twin_of(model), replace(self, inputs=inputs)))
            except Exception:
                return None
        return found

    def check_steady(self, model: nn.Module) -> None:
        """Raise if the masked model, called twice, gives different outputs for the same inputs."""
        twin = self.twin_of(model)
        if max(self.error(twin.model) for _ in range(2)) > self.tolerance:
            raise UnsupportedModelError(
                f"{type(model).__name__} returns different outputs for the same inputs in "
                "evaluation; without stable outputs nothing can be checked."
            )

    def check_chance(self, model: nn.Module, drawn: str) -> None:
        """Raise if random numbers drawn in evaluation change the masked model's outputs.

        ``drawn`` names the generators.
        """
        twin = self.twin_of(model).model
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
        Its own copy, since its tensors are replaced.
    precision : str
        Which precision.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model, self.precision = model, precision
        self._load: Load = keep
        if precision != "own":
            run_contiguous(model)
        if precision == "parts":
            load_in_parts(model, lambda *named: self._load(*named))
            return
        for tensor in model.parameters():
            tensor.data = tensor.data.clone()
        if precision == "double":
            model.double()
        drop_caches(model)  # tables were computed from other numbers

    def keeps_tables(self) -> bool:
        """Whether the model keeps something computed from the weights after a run."""
        return any(True for module in self.model.modules() for _ in cached_tensors(module))

    def free(self) -> None:
        """Give the memory of the weights back: modules and hooks refer to each other, and live on."""
        for tensor in self.model.parameters():
            tensor.data = tensor.data.new_empty(0)

    def use(self, load: Load) -> None:
        """Switch to other weights: the result of a function of each."""
        self._load = load
        if self.precision != "parts":
            for name, tensor in self.model.named_parameters():
                tensor.data = load(name, tensor.data, 0)
            drop_caches(self.model)


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
    """Run the masked model, in double precision if possible, and again with noise if given.

    Both runs are needed: zeros hide errors from the first one, and noise that switches a unit off hides its
    errors from the second.
    """
    given = as_inputs(example_inputs)
    precisions: tuple[Precision, ...] = ("double",) if has_tables(model) else ("parts", "double")
    for precision in precisions:
        try:
            tolerance = _ROUGH if has_casts else _EXACT
            return _references(model, Reference(_as_double(given), [], precision, tolerance), noise)
        except UnsupportedModelError:
            raise
        except Exception as error:
            log.debug("speedup: %s precision: %s", precision, error)
    return _references(model, Reference(given, [], "own", _ROUGH), noise)  # which it insists on


def _references(model: nn.Module, setup: Reference, noise: Load | None) -> list[Reference]:
    """Complete a setup with the model's own weights, and if there is noise again with that."""
    twin = setup.twin_of(model)
    own = _run(twin, setup)
    if noise is None:
        return [own]
    if twin.keeps_tables():
        twin.free()
        twin = setup.twin_of(model)
    twin.use(noise)
    try:
        return [own, _run_varied(twin, setup)]
    finally:
        twin.free()


def _run_varied(twin: Twin, setup: Reference) -> Reference:
    """Run the masked model on inputs that reveal something."""
    varied = _varied(setup.inputs)
    try:
        found = _run(twin, replace(setup, inputs=varied))
        if _is_finite(found):
            return found
    except Exception as error:
        log.debug("speedup: on other inputs: %s", error)
    return _run(twin, setup)


def _is_finite(reference: Reference) -> bool:
    return all(x.isfinite().all() for answer in reference.outputs for x in answer)


def _run(twin: Twin, setup: Reference) -> Reference:
    """Return a setup with the outputs of a model."""
    model = twin.model
    answers = _answers(model, setup.inputs, 2 if _has_fast_path(model) else 1)
    if not any(x.is_floating_point() and x.isfinite().any() for x in answers[0]):
        raise UnsupportedModelError(
            f"{type(model).__name__} returns no finite number for the example inputs, so nothing can be "
            "checked; pass realistic inputs."
        )
    return replace(setup, outputs=answers)


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
    generator = torch.Generator().manual_seed(SEED)

    def vary(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return (x + noise.to(x.device, x.dtype) * (x.std() if x.numel() > 1 else 1) + 0.1).to(
            x.dtype
        )

    args, kwargs = inputs
    return tuple(vary(x) for x in args), {k: vary(x) for k, x in kwargs.items()}
