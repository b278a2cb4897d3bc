"""Look at models from outside: what they compute, what they are made of, how they train."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.core.compressor import Compressor
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.models import Specimen
from lilliput.testing.parts import Same, expect_same_parts
from lilliput.testing.subject import set_seed


def outputs(model: nn.Module, inputs: Tensor, training: bool = False) -> Tensor:
    """Return what a model computes, without gradient, and leave its mode as it was."""
    was_training = model.training
    model.train(training)
    set_seed(1)
    with torch.no_grad():
        result: Tensor = model(inputs)
    model.train(was_training)
    return result


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a loss that pulls the outputs to fixed numbers of their own size."""
    set_seed(1)
    result = model(inputs)
    target = torch.sin(torch.arange(result.numel(), device=result.device))
    loss: Tensor = (result - target.view_as(result).to(result)).square().mean()
    return loss


def train(
    model: Specimen,
    optimizer: torch.optim.Optimizer,
    steps: int,
    compressor: Compressor | None = None,
) -> None:
    """Train some steps; call ``step()`` by hand for a compressor that has no optimizer."""
    inputs = model.make_input()
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if compressor is not None and compressor.optimizer is None:
            compressor.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that moves pruned weights the most: momentum and weight decay."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


@dataclass(frozen=True)
class Entry:
    """One weight or bias of a compressed model, as each of its owners sees it."""

    label: str
    raw: Tensor
    seen: Tensor
    mask: Tensor | None
    channels: tuple[int, int] = (0, 1)  # axis of the output channels, and their groups

    @property
    def pruned(self) -> Tensor:
        """Where the weight is zero because a mask says so, and not by chance as in a new bias."""
        is_zero = self.seen == 0
        return is_zero if self.mask is None else is_zero & (self.mask == 0)


def entries(
    compressor: Compressor, with_bias: bool = False, with_companions: bool = True
) -> Iterator[Entry]:
    """Yield the compressed weights of a model, once per owner."""
    companions = compressor.companions() if with_companions else []
    for wrapper in (*compressor.get_modules_wrapper(), *companions):
        for owner in wrapper.layer_info.owners:
            names = [(owner.weight_name, "weight"), (owner.bias_name, "bias")]
            for name, role in names if with_bias else names[:1]:
                if name is not None:
                    label = f"{owner.path}.{name}" if owner.path else name
                    mask = wrapper._buffers.get(f"{role}_mask")
                    seen = getattr(owner.module, name).detach().clone()
                    info = wrapper.layer_info
                    channels = (info.out_axis, info.out_groups)
                    yield Entry(label, owner.module._parameters[name], seen, mask, channels)


def tensors_of(compressor: Compressor) -> dict[str, Tensor]:
    """Return copies of everything the wrappers keep in buffers: masks, scales and the like."""
    return {
        f"{wrapper.name}.{key}": value.detach().clone()
        for wrapper in compressor._every_wrapper()
        for key, value in wrapper._buffers.items()
        if value is not None
    }


def expect_same_tensors(actual: Compressor, expected: Compressor, when: str) -> None:
    """Expect two compressors to hold the same masks and scales."""
    received, wanted = tensors_of(actual), tensors_of(expected)
    differing = sorted(received.keys() ^ wanted.keys())
    expect(not differing, f"{when}, only one of two compressors holds {differing}.")
    for key, value in wanted.items():
        expect_equal(received[key], value, f"{when}, {key} of two compressors")


def quantizes_activations(compressor: Compressor) -> bool:
    """Whether layers change their inputs or outputs, so that no plain model equals this one."""
    roles = {role for w in compressor.get_modules_wrapper() for role in w.roles}
    return not roles.isdisjoint({"input", "output"})


def plain_twin(pristine: nn.Module, model: nn.Module, compressor: Compressor) -> nn.Module:
    """Return a plain model with the weights that the compressed layers claim to compute with."""
    twin = copy.deepcopy(pristine)
    state = model.state_dict()
    twin.load_state_dict({key: state[key] for key in twin.state_dict()})
    with torch.no_grad():
        for entry in entries(compressor, with_bias=True):
            twin.get_parameter(entry.label).copy_(entry.seen)
    return twin.train(model.training)


def expect_like_twin(
    pristine: nn.Module, model: Specimen, compressor: Compressor, when: str
) -> None:
    """Expect the model to compute what a plain one computes with the weights its layers show."""
    if not quantizes_activations(compressor):
        twin = plain_twin(pristine, model, compressor)
        inputs = model.make_input()
        is_training = model.training
        expected = outputs(twin, inputs, is_training)
        what = f"{when}, outputs against a plain model with the compressed weights"
        expect_close(outputs(model, inputs, is_training), expected, what)


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


class Anatomy:
    """What a model (and its optimizer) is made of, for comparison later on.

    Parameters
    ----------
    model : torch.nn.Module
        The model; its weights are copied, the rest is remembered by identity.
    optimizer : torch.optim.Optimizer, optional
        Its hooks and attributes count too.
    """

    def __init__(self, model: nn.Module, optimizer: Any = None) -> None:
        self.parts = _parts(model, optimizer)
        self.values = {key: value.clone() for key, value in model.state_dict().items()}

    def expect_same(
        self, model: nn.Module, when: str, optimizer: Any = None, values: bool = True
    ) -> None:
        """Expect the model to be made of the very same parts, and to hold the same values."""
        expect_same_parts(_parts(model, optimizer), self.parts, when)
        if values:
            for key, value in model.state_dict().items():
                expect_equal(value, self.values[key], f"{when}, {key}")


def _parts(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Return named facts about a model that compare equal only if nothing was touched."""
    parts: dict[str, Any] = {"the state-dict keys": list(model.state_dict())}
    owners: list[tuple[str, Any]] = [(f"module {k!r}", m) for k, m in model.named_modules()]
    for label, owner in owners if optimizer is None else [*owners, ("the optimizer", optimizer)]:
        parts[label] = Same(owner)
        parts[f"the class of {label}"] = type(owner)
        parts[f"the attributes of {label}"] = sorted(vars(owner))
        for name in _HOOKS:
            if hasattr(owner, name):
                parts[f"{name} of {label}"] = list(getattr(owner, name))
    for key, parameter in model.named_parameters(remove_duplicate=False):
        parts[f"parameter {key!r}"] = Same(parameter)
    return parts
