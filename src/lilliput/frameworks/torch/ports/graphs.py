"""Torch for the engine: a model as data, and quantizers in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import QuantType
from lilliput.errors import ConfigError
from lilliput.frameworks.ports.graphs import Graphs, Quantizing
from lilliput.frameworks.torch import instrument
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.grad import with_gradient
from lilliput.frameworks.torch.masks import owners_of
from lilliput.frameworks.torch.wrapper import ModuleWrapper
from lilliput.graph.flow import Flow
from lilliput.graph.ir import Graph
from lilliput.ops.grad import QuantGrad


class TorchGraphs(Graphs):
    """Read a model as data."""

    def graph(self, model: nn.Module, example_inputs: Any) -> Graph:
        """Record one run of a copy of the model, without values."""
        from lilliput.frameworks.torch.capture import forget_values
        from lilliput.frameworks.torch.copies import plain_copy
        from lilliput.frameworks.torch.graph import graph_of

        graph = graph_of(plain_copy(model, share=True), example_inputs)
        forget_values(graph.source)
        return graph

    def needs_example(self, model: nn.Module) -> bool:
        """Return True: the behaviour of a module is only known from a run."""
        return True

    def flow(self, model: nn.Module, example_inputs: Any) -> Flow:
        """Run the model once in eval mode; see :mod:`flow`."""
        from lilliput.frameworks.torch.example_inputs import as_inputs
        from lilliput.frameworks.torch.flow import record_flow

        args, kwargs = as_inputs(example_inputs)
        try:
            return record_flow(unwrapped(model), lambda: model(*args, **kwargs))
        except Exception as error:
            raise ConfigError(
                f"example_inputs: the model does not run on them: {type(error).__name__}: {error}"
            ) from error

    def on_call(self, model: nn.Module, task: Callable[[Any, Any], None]) -> Any:
        """Register a forward pre hook on the model."""
        return model.register_forward_pre_hook(
            lambda _, args, kwargs: task(args, kwargs), with_kwargs=True
        )

    def flow_of_batch(
        self, model: nn.Module, batch: Any, forward: Callable[..., Any] | None
    ) -> Flow:
        """Run the first rows of a batch in eval mode, or the whole batch if the model requires it."""
        from lilliput.frameworks.torch.flow import flow_of_batch

        return flow_of_batch(model, batch, forward)


class TorchQuantizing(Quantizing):
    """Quantize tensors at their placements, with the gradient that a rule defines."""

    def tensor(self, value: float, wrapper: ModuleWrapper) -> Tensor:
        """Return a number as a tensor on the device of a wrapper's layer."""
        near = next(wrapper.module.parameters(), None)
        device = None if near is None else near.device
        return torch.tensor(value, dtype=torch.float32, device=device)

    def parameter(self, value: Tensor, at_least: float | None = None) -> nn.Parameter:
        """Return a tensor as a trainable parameter; the algorithm has to enforce its bound."""
        return nn.Parameter(value.detach().clone())

    def keep_quantizers(self, wrapper: ModuleWrapper, roles: Collection[str]) -> None:
        """Switch the hooks on the modules that own the weight."""
        for owner in owners_of(wrapper):
            instrument.keep_quantizers(owner.module, wrapper, roles)

    def add_remote_quantizer(
        self, model: nn.Module, path: str, wrapper: ModuleWrapper, role: str
    ) -> Any:
        """Register a forward hook on another module."""
        module = unwrapped(model).get_submodule(path)
        return module.register_forward_hook(instrument.RemoteQuantizer(wrapper, role), prepend=True)

    def link_norm(self, model: nn.Module, wrapper: ModuleWrapper) -> None:
        """Store the norm in a list, because as an attribute it would be a child of the wrapper."""
        path = getattr(wrapper, "norm", "")
        wrapper.__dict__["_norms"] = [unwrapped(model).get_submodule(str(path))] if path else []

    @torch.no_grad()
    def norm_factor(self, wrapper: ModuleWrapper) -> Tensor:
        """Return ``gamma / sqrt(running_var + eps)``."""
        (norm,) = wrapper.__dict__["_norms"]
        factor: Tensor = torch.rsqrt(norm.running_var + norm.eps)
        return factor if norm.weight is None else factor * norm.weight

    def freeze_norms(self, model: nn.Module, paths: Iterable[str]) -> list[Any]:
        """Register hooks that put the norms into eval mode while they run."""
        handles = []
        for path in paths:
            norm = unwrapped(model).get_submodule(path)
            handles += [
                norm.register_forward_pre_hook(instrument.use_running_statistics),
                norm.register_forward_hook(instrument.resume_mode, always_call=True),
            ]
        return handles

    def refinement(
        self, quantizer: Any, batches: Sequence[Any], forward: Callable[..., Any] | None
    ) -> Any:
        """Run the first batch to analyse the structure of the model; see :mod:`ptq`."""
        from lilliput.frameworks.torch.flow import flow_of_batch  # here: imports are to be quick
        from lilliput.frameworks.torch.ptq import Refinement

        model = quantizer.bound_model
        return Refinement(
            quantizer, batches, forward, lambda: flow_of_batch(model, batches[0], forward)
        )

    def is_computed(self, value: Any) -> bool:
        """Whether a value is a torch tensor."""
        return isinstance(value, Tensor)

    def with_gradient(
        self, tensor: Tensor, result: Tensor, rule: type[QuantGrad], quant_type: QuantType
    ) -> Tensor:
        """Return the result of an autograd function; see :mod:`grad`."""
        return with_gradient(tensor, result, rule, quant_type)
