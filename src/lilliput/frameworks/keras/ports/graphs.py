"""Keras for the engine: a model as data, and quantizers in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from keras import ops

from lilliput.config.layer import QuantType
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras import instrument, running
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.flow import flow_of
from lilliput.frameworks.keras.functions import retrace
from lilliput.frameworks.keras.grad import with_gradient
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.learned import Parameter
from lilliput.frameworks.keras.sidecar import sidecar_of
from lilliput.frameworks.keras.variables import raw, tensor_of
from lilliput.frameworks.keras.wrapper import ModuleWrapper
from lilliput.frameworks.ports.graphs import Graphs, Quantizing
from lilliput.graph.flow import Flow
from lilliput.graph.ir import Graph
from lilliput.ops.grad import QuantGrad

Tensor = Any


class KerasGraphs(Graphs):
    """Read a model as data."""

    def on_call(self, model: Any, task: Callable[[Any, Any], None]) -> Any:
        """Call ``task(args, kwargs)`` before each call of a model under compression."""
        return models.Watcher(model, task)

    def graph(self, model: Any, example_inputs: Any) -> Graph:
        """Translate the layers of the model to neutral ops; nothing runs."""
        from lilliput.frameworks.keras.reader import graph_of

        return graph_of(model, example_inputs)

    def needs_example(self, model: Any) -> bool:
        """Whether the model is subclassed, so that Keras does not know its graph."""
        return function_of(model) is None

    def flow(self, model: Any, example_inputs: Any) -> Flow:
        """Return the flow of tensors through the model, from its graph."""
        return flow_of(model, example_inputs)

    def known_flow(self, model: Any) -> Flow | None:
        """Return the flow of a Functional or Sequential model."""
        return None if function_of(model) is None else flow_of(model)

    def flow_of_batch(self, model: Any, batch: Any, forward: Callable[..., Any] | None) -> Flow:
        """Return the flow; only a subclassed model needs the batch."""
        return flow_of(model, running.inputs_of(batch))


class KerasQuantizing(Quantizing):
    """Quantize tensors at their placements, with the gradient that a rule defines."""

    def keep_quantizers(self, wrapper: ModuleWrapper, roles: Collection[str]) -> None:
        """Quantize activations at the layers that own the weight only if ``roles`` names them."""
        for owner in wrapper.layer_info.owners:
            sidecar = sidecar_of(owner.module)
            if sidecar is not None:
                sidecar.keep_quantizers(wrapper, roles)
        retrace(wrapper.compressor.bound_model)

    def add_remote_quantizer(self, model: Any, path: str, wrapper: ModuleWrapper, role: str) -> Any:
        """Quantize the output of another layer."""
        retrace(model)
        return instrument.RemoteQuantizer(wrapper, role).add_to(layers_by_path(model)[path])

    def link_norm(self, model: Any, wrapper: ModuleWrapper) -> None:
        """Store the norm with the wrapper."""
        path = getattr(wrapper, "norm", "")
        wrapper.__dict__["_norm"] = layers_by_path(model)[path] if path else None

    def norm_factor(self, wrapper: ModuleWrapper) -> Tensor:
        """Return ``gamma / sqrt(moving_variance + epsilon)``."""
        norm = wrapper.__dict__["_norm"]
        variance = ops.stop_gradient(tensor_of(norm.moving_variance))
        factor = ops.rsqrt(variance + norm.epsilon)
        gamma = raw(norm, "gamma")
        if gamma is None:
            return factor
        return factor * ops.stop_gradient(tensor_of(gamma))

    def freeze_norms(self, model: Any, paths: Iterable[str]) -> list[Any]:
        """Make norms use their running statistics in training."""
        layers = layers_by_path(model)
        frozen = [instrument.Freezer().add_to(layers[path]) for path in paths]
        retrace(model)
        return frozen

    def thaw_norms(self, model: Any) -> None:
        """Discard the graphs in which norms are frozen."""
        retrace(model)

    def refinement(
        self, quantizer: Any, batches: Sequence[Any], forward: Callable[..., Any] | None
    ) -> Any:
        """Raise for options that change parameters in calibration."""
        raise UnsupportedModelError(
            "equalize, smooth, adaround and bias_correction are for torch models; omit them."
        )

    def tensor(self, value: float, wrapper: ModuleWrapper) -> Tensor:
        """Return a number as a float32 tensor."""
        return ops.convert_to_tensor(value, dtype="float32")

    def parameter(self, value: Any, at_least: float | None = None) -> Parameter:
        """Return a value that a wrapper turns into a trainable variable; see :mod:`learned`."""
        return Parameter(value, at_least)

    def value_of(self, tensor: Any) -> Any:
        """Return the value of a variable, because some Keras functions do not accept variables."""
        return tensor_of(tensor)

    def is_computed(self, value: Any) -> bool:
        """Whether a value is a tensor of the backend."""
        return bool(ops.is_tensor(value))

    def with_gradient(
        self, tensor: Tensor, result: Tensor, rule: type[QuantGrad], quant_type: QuantType
    ) -> Tensor:
        """Return the result in the precision of the tensor; see :mod:`grad`."""
        return with_gradient(tensor, ops.cast(result, tensor.dtype), rule, quant_type)
