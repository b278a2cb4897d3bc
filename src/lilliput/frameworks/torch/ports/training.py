"""Torch for the engine: following the training of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.frameworks.ports.training import Penalty, Training
from lilliput.frameworks.torch import statistics, stepping
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.first_state import check_first_values
from lilliput.frameworks.torch.learning import Learned, check_fit
from lilliput.frameworks.torch.masks import masked_parameters, owners_of
from lilliput.frameworks.torch.noise import Noise
from lilliput.frameworks.torch.weights import is_parametrized, raw
from lilliput.frameworks.torch.wrapper import Collector, ModuleWrapper


class TorchTraining(Training):
    """Follow the training of a model, and add parameters to its optimizer."""

    def on_forward(self, wrapper: ModuleWrapper, collector: Callable[..., Any]) -> list[Any]:
        """Register the collector on every module that owns the weight."""
        hook = Collector(wrapper, collector)
        modules = [owner.module for owner in owners_of(wrapper)]
        return [module.register_forward_hook(hook, with_kwargs=True) for module in modules]

    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Register a step post hook."""
        return optimizer.register_step_post_hook(lambda *_: task())

    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Register a step pre hook; see :mod:`stepping`."""
        return stepping.before_step(optimizer, task)

    def gradient(self, wrapper: ModuleWrapper, optimizer: Any = None) -> Any:
        """Return the full gradient of the raw weight, or None."""
        return statistics.gradient(wrapper, stepping.gradient_scale(optimizer))

    def pull_to_zero(
        self, wrappers: Sequence[ModuleWrapper], scale: float, optimizer: Any = None
    ) -> None:
        """Add the subgradient of ``scale * |w|`` to the gradients of the raw weights."""
        statistics.pull_to_zero(wrappers, scale, stepping.gradient_scale(optimizer))

    def add_penalty(
        self, wrapper: ModuleWrapper, names: Sequence[str], penalty: Penalty, optimizer: Any
    ) -> None:
        """Add the gradients of a penalty to those of its arguments; called before each step."""
        statistics.add_penalty(wrapper, names, penalty, stepping.gradient_scale(optimizer))

    def add_noise(self, wrappers: Sequence[ModuleWrapper]) -> list[Any]:
        """Register forward hooks; see :mod:`noise`."""
        # torch.compile does not guard hooks, so it would reuse graphs traced without them.
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        # Before other hooks, so that a distiller or a quantizer sees what the next layer receives.
        return [
            wrapper.module.register_forward_hook(Noise(wrapper), with_kwargs=True, prepend=True)
            for wrapper in wrappers
        ]

    def show_gradients(self, wrappers: Sequence[ModuleWrapper], is_shown: bool) -> None:
        """Leave gradients of pruned weights unmasked, or mask them again."""
        for wrapper in wrappers:
            wrapper.__dict__["_shows_gradient"] = is_shown  # not part of any state
        if not is_shown:
            statistics.mask_gradients(masked_parameters(wrappers))

    def is_training(self, model: nn.Module) -> bool:
        """Whether the model, inside its wrappers, is in training mode."""
        return unwrapped(model).training

    def missing_from(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> list[str]:
        """Return the layers whose weight is to be trained, but not by this optimizer."""
        held = _held_by(optimizer)
        weights = [
            (w.name, raw(w.module, name)) for w in wrappers if (name := w.layer_info.weight_name)
        ]
        return [name for name, p in weights if p.requires_grad and id(p) not in held]

    def check_regrowth(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> None:
        """Raise if the optimizer's initial state for a new weight is unknown."""
        held = _held_by(optimizer)
        for parameter, _ in masked_parameters(wrappers):
            if id(parameter) in held:
                check_first_values(optimizer, parameter)

    def add_to_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> list[Any]:
        """Add the wrappers' own parameters to the groups of their weights; see :mod:`learning`."""
        held = _held_by(optimizer)
        found: list[tuple[str, nn.Parameter, Any]] = []
        for wrapper in wrappers:
            name = wrapper.layer_info.weight_name
            weight = None if name is None else raw(wrapper.module, name)
            own = wrapper.named_parameters()
            found += [(f"{wrapper.name}.{k}", p, weight) for k, p in own if id(p) not in held]
        return [Learned(optimizer, found)] if found else []

    def restart_optimizer(self, model: nn.Module, optimizer: Any) -> None:
        """Drop the state of all parameters; a model has no optimizer of its own."""
        if optimizer is not None:
            optimizer.state.clear()

    def check_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> None:
        """Raise if the optimizer cannot be hooked or contains none of the weights."""
        if not hasattr(optimizer, "register_step_post_hook"):
            raise ConfigError(
                f"optimizer: received {type(optimizer).__name__!r}, expected a torch.optim.Optimizer "
                "(or omit it and call step() yourself)."
            )
        is_hollow = not hasattr(optimizer, "_optimizer_step_post_hooks")  # such as accelerate's
        if is_hollow and isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer: received {type(optimizer).__name__!r}, which cannot be hooked, because it only "
                "forwards to another optimizer; pass the one inside."
            )
        held = _held_by(optimizer)
        weights = [
            raw(w.module, name)
            for w in wrappers
            if (name := w.layer_info.weight_name) and not is_parametrized(w.module, name)
        ]
        own = [p for wrapper in wrappers for p in wrapper.parameters()]
        check_fit(optimizer, [p for p in own if id(p) not in held])
        if weights and not any(id(p) in held for p in [*weights, *own]):
            raise ConfigError(
                "optimizer: it contains none of the weights to compress; was it created for another model, "
                "or before the model was moved or wrapped? Create it from this model's parameters()."
            )


def _held_by(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
