"""Operations on test models that only torch has: compile, export, cast, copy and pickle."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.lab import Array, loss_of, read
from lilliput.frameworks.torch.lab_models import Specimen

Step = tuple[Array, dict[str, Array]]  # the loss, and the gradient of each parameter


@contextmanager
def compiled(model: nn.Module) -> Iterator[Any]:
    """Compile a model as one graph, and reset the compiler afterwards."""
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            # While tracing an autograd.Function, dynamo triggers its own deprecation warning.
            warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
            yield torch.compile(model, fullgraph=True, backend="aot_eager")
    finally:
        torch._dynamo.reset()


def without_new_graphs() -> AbstractContextManager[None]:
    """Raise if a model is compiled again."""
    patch: AbstractContextManager[None] = torch._dynamo.config.patch(error_on_recompile=True)
    return patch


def steps(model: Specimen, other: Any, inputs: Tensor) -> list[Step]:
    """Return loss and gradients of a model, and of its compiled form."""
    results = []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for each in (model, other):
        model.zero_grad()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])  # running statistics
        loss = loss_of(each, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = {k: read(p.grad) for k, p in model.named_parameters() if p.grad is not None}
        results.append((read(loss), grads))
    return results


@torch.no_grad()
def exported_outputs(model: nn.Module, inputs: Tensor) -> Array:
    """Return the output of the program of torch.export."""
    return read(torch.export.export(model, (inputs,)).module()(inputs))


def cast(model: nn.Module, dtype: str) -> nn.Module:
    """Convert a model to another precision."""
    return model.to(getattr(torch, dtype))


def save_weights(model: nn.Module) -> io.BytesIO:
    """Return the state dict as a file."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


def load_weights(model: nn.Module, file: io.BytesIO) -> None:
    """Load such a file."""
    model.load_state_dict(torch.load(file, weights_only=True), strict=True)


@torch.no_grad()
def zero(model: nn.Module) -> None:
    """Set every parameter and buffer to zero."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.zero_()


def save_whole(model: nn.Module) -> None:
    """Write a whole model, as some trainers do."""
    torch.save(model, io.BytesIO())
