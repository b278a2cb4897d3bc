"""The lab for torch: how the checks create, train and read models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.discover import DEFAULT_TYPES as DEFAULT_TYPES
from lilliput.frameworks.torch.lab_models import SPECIMENS as SPECIMENS
from lilliput.frameworks.torch.lab_models import Specimen

if TYPE_CHECKING:
    from lilliput.core.compressor import Compressor

Array = Any

# A step takes a millisecond, so every check runs on every model.
LAYER_KINDS: tuple[str, ...] = tuple(SPECIMENS)
FEW: tuple[str, ...] = tuple(SPECIMENS)
STEPS: int = 3
SIMPLE_TYPES: tuple[str, ...] = ("Conv2d", "Linear")

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)


@contextmanager
def isolated() -> Iterator[None]:
    """Use one thread, and restore the threads and random generators afterwards."""
    threads, state, numpy_state = torch.get_num_threads(), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(state)
            np.random.set_state(numpy_state)


def set_seed(seed: int) -> None:
    """Seed all generators that an algorithm is likely to use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@cache
def types_in(kind: str) -> frozenset[str]:
    """Return the class names of the modules of a kind of model, and of their bases."""
    modules = SPECIMENS[kind]().modules()
    return frozenset(cls.__name__ for module in modules for cls in type(module).__mro__)


def like(model: Specimen) -> Specimen:
    """Return a fresh plain model of the same kind and dtype."""
    return type(model)().to(next(model.parameters()).dtype)


def outputs(model: Specimen, training: bool = False) -> Array:
    """Return the output of a model for its test batch, and restore its mode."""
    was_training = model.training
    model.train(training)
    set_seed(1)
    with torch.no_grad():
        result = model(model.make_input())
    model.train(was_training)
    return read(result)


def loss_of(model: Any, inputs: Tensor) -> Tensor:
    """Return a loss that pulls the outputs to fixed numbers of similar size."""
    set_seed(1)
    result = model(inputs)
    target = torch.sin(torch.arange(result.numel(), device=result.device))
    loss: Tensor = (result - target.view_as(result).to(result)).square().mean()
    return loss


def gradients(model: Specimen, distiller: Any = None) -> dict[int, Array | None]:
    """Return the gradient of each parameter in training, by its id; with a distiller, of its loss."""
    model.train()
    model.zero_grad()
    loss = loss_of(model, model.make_input())
    loss = loss if distiller is None else distiller.loss()
    loss.backward()
    found = {id(p): None if p.grad is None else read(p.grad) for p in model.parameters()}
    model.zero_grad()
    return found


def compare(model: Specimen, distiller: Any) -> tuple[Array, Array]:
    """Return a model's training output, and its distance to the teacher by a distiller."""
    model.train()
    set_seed(1)
    result = model(model.make_input())
    return read(result), read(distiller.loss())


def batch(model: Specimen) -> Tensor:
    """Return the input of a model."""
    return model.make_input()


def run_layer(layer: nn.Module, inputs: tuple[Any, ...]) -> Array:
    """Return the output of one layer in eval mode, without gradient."""
    was_training = layer.training
    layer.eval()
    with torch.no_grad():
        result = layer(*inputs)
    layer.train(was_training)
    return read(result)


def parts(model: nn.Module, optimizer: Any = None) -> tuple[dict[str, Any], ...]:
    """Return the modules, parameters and hooks of a model, and the state of its optimizer."""
    things: dict[str, Any] = {
        f"parameter {key!r}": parameter
        for key, parameter in model.named_parameters(remove_duplicate=False)
    }
    facts: dict[str, Any] = {"the state-dict keys": list(model.state_dict())}
    owners: list[tuple[str, Any]] = [(f"module {k!r}", m) for k, m in model.named_modules()]
    if optimizer is not None:
        owners.append(("the optimizer", optimizer))
        things["what the optimizer holds"] = held(optimizer)
        facts["the number of its groups"] = len(optimizer.param_groups)
    for label, owner in owners:
        things[label] = owner
        facts[f"the class of {label}"] = type(owner)
        facts[f"the attributes of {label}"] = sorted(vars(owner))
        for name in _HOOKS:
            if hasattr(owner, name):
                facts[f"{name} of {label}"] = list(getattr(owner, name))
        if isinstance(owner, nn.RNNBase):  # which uses its own list
            things[f"the flat weights of {label}"] = list(owner._flat_weights)
    return things, facts


def holds(model: nn.Module, tensor: Tensor) -> bool:
    """Whether a tensor is a buffer of the model without a gradient."""
    return not tensor.requires_grad and any(tensor is buffer for buffer in model.buffers())


def weights(model: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers in the state dict, by its keys."""
    found: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    found |= dict(model.named_buffers(remove_duplicate=False))
    return {key: found[key] for key in model.state_dict()}


def raw(layer: nn.Module, name: str) -> Any:
    """Return the Parameter behind an attribute of a module."""
    return layer._parameters[name]


def read(tensor: Tensor) -> Array:
    """Return a copy of a tensor; NumPy has no bfloat16."""
    values = tensor.detach().cpu()
    return np.array((values.float() if values.dtype == torch.bfloat16 else values).numpy())


@torch.no_grad()
def write(weight: Tensor, value: Array) -> None:
    """Overwrite a tensor in place."""
    weight.copy_(torch.from_numpy(np.array(value)))


def tensor(value: Array) -> Tensor:
    """Return an array as a tensor."""
    return torch.from_numpy(value)


def describe(tensor: Tensor) -> tuple[Any, ...]:
    """Return shape, name of the dtype and device of a tensor."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device


def sgd(model: nn.Module, weight_decay: float = 0.01) -> torch.optim.Optimizer:
    """Return the optimizer that moves pruned weights the most: with momentum and weight decay."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=weight_decay)


def optimizer(model: nn.Module, name: str = "sgd") -> torch.optim.Optimizer:
    """Return an optimizer of a model."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    return sgd(model, weight_decay=0.01 if name == "sgd" else 0.0)


def train(
    model: Specimen,
    optimizer: torch.optim.Optimizer,
    steps: int,
    compressor: Any = None,
) -> None:
    """Train for some steps; call ``step()`` by hand for a compressor without an optimizer.

    The loss of a distiller is added to the loss.
    """
    inputs = model.make_input()
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        if getattr(compressor, "kind", "") == "distiller":
            loss = loss + compressor.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if compressor is not None and compressor.optimizer is None:
            compressor.step()


def use(model: Specimen, optimizer: Any, compressor: Compressor | None = None) -> Array:
    """Train a model and return its output afterwards."""
    train(model, optimizer, 2, compressor)
    return outputs(model)


def ways_to_run(model: Specimen, optimizer: Any) -> list[tuple[bool, Callable[[], Any]]]:
    """Return ways to run a model, each with whether it is training."""
    return [
        (False, lambda: outputs(model)),
        (True, lambda: train(model, optimizer, 1)),
        (True, lambda: outputs(model, training=True)),
    ]


def held(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def learned(wrapper: nn.Module) -> dict[str, Any]:
    """Return the trained parameters of a wrapper."""
    return {name: p for name, p in wrapper.named_parameters() if p.requires_grad}


def load_plain(model: nn.Module, plain: nn.Module, folder: Path) -> None:
    """Load the state dict of a plain model, strictly, via a file."""
    torch.save(plain.state_dict(), folder / "plain.pt")
    model.load_state_dict(torch.load(folder / "plain.pt", weights_only=True), strict=True)


def resume(
    model: Specimen,
    optimizer: torch.optim.Optimizer,
    compress: Callable[[Any, Any], Compressor],
    folder: Path,
) -> tuple[Specimen, torch.optim.Optimizer, Compressor]:
    """Save the plain weights and the optimizer's state; load both into another compressed model."""
    other = like(model)
    keys, its_optimizer = list(other.state_dict()), sgd(other)
    compressor = compress(other, its_optimizer)
    state = model.state_dict()
    saved = {"model": {key: state[key] for key in keys}, "optimizer": optimizer.state_dict()}
    torch.save(saved, folder / "model.pt")
    loaded = torch.load(folder / "model.pt", weights_only=True)
    other.load_state_dict(loaded["model"])
    its_optimizer.load_state_dict(loaded["optimizer"])
    return other, its_optimizer, compressor
