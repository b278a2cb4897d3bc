"""The framework interface of the engine: the model as data, and quantizers in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError
from lilliput.graph.flow import Flow
from lilliput.graph.ir import Graph
from lilliput.ops.grad import QuantGrad
from lilliput.ops.namespace import namespace


class Graphs(ABC):
    """Read a model as data."""

    @abstractmethod
    def graph(self, model: Any, example_inputs: Any) -> Graph:
        """Return the ops of a model as data; the model is only read."""

    @abstractmethod
    def needs_example(self, model: Any) -> bool:
        """Whether :meth:`graph` requires example inputs."""

    @abstractmethod
    def flow(self, model: Any, example_inputs: Any) -> Flow:
        """Run a model once, and return the flow of tensors through it."""

    def known_flow(self, model: Any) -> Flow | None:
        """Return the flow of tensors of a model whose graph is known without running it."""
        return None

    @abstractmethod
    def flow_of_batch(self, model: Any, batch: Any, forward: Callable[..., Any] | None) -> Flow:
        """Return the flow of tensors for a batch of a data loader."""

    @abstractmethod
    def on_call(self, model: Any, task: Callable[[Any, Any], None]) -> Any:
        """Call ``task(args, kwargs)`` before each forward pass of a model; return a removable handle."""


class Quantizing(ABC):
    """Quantize tensors at their placements, with the gradient that a rule defines."""

    # Whether optimizers of the framework enforce the bound of a parameter by themselves.
    keeps_bounds: ClassVar[bool] = False

    @abstractmethod
    def tensor(self, value: float, wrapper: Any) -> Any:
        """Return a number as a float32 tensor on the device of a wrapper's layer."""

    @abstractmethod
    def parameter(self, value: Any, at_least: float | None = None) -> Any:
        """Return a tensor as a trainable parameter, with a bound if :attr:`keeps_bounds`."""

    def quantize(
        self,
        tensors: tuple[Any, ...],
        function: Callable[..., Any],
        rule: type[QuantGrad] | None,
        quant_type: QuantType,
    ) -> tuple[Any, ...]:
        """Return the result of ``function`` for the tensors, with the gradient that ``rule`` defines."""
        seen = tensors if rule is None else tuple(namespace(x).detach(x) for x in tensors)
        answer = function(*seen)
        results = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
        for result in results:
            if not self.is_computed(result):
                raise AlgorithmError(
                    f"a quantizer returned {type(result).__name__} for a layer's {quant_type.value}; "
                    "expected a tensor."
                )
        if rule is None or len(results) != len(tensors):  # the caller raises for the latter
            return results
        pairs = zip(tensors, results, strict=True)
        return tuple(self.with_gradient(x, y, rule, quant_type) for x, y in pairs)

    @abstractmethod
    def is_computed(self, value: Any) -> bool:
        """Whether a value is a tensor of the framework, not an array or a variable."""

    @abstractmethod
    def with_gradient(
        self, tensor: Any, result: Any, rule: type[QuantGrad], quant_type: QuantType
    ) -> Any:
        """Return the result, with the gradient that ``rule`` defines for its source tensor."""

    def value_of(self, tensor: Any) -> Any:
        """Return the value of a variable for an author's code."""
        return tensor

    @abstractmethod
    def keep_quantizers(self, wrapper: Any, roles: Collection[str]) -> None:
        """Quantize a layer's input and output at the layer itself only if ``roles`` names them."""

    @abstractmethod
    def add_remote_quantizer(self, model: Any, path: str, wrapper: Any, role: str) -> Any:
        """Quantize the output of a module for another layer; return a removable handle."""

    @abstractmethod
    def link_norm(self, model: Any, wrapper: Any) -> None:
        """Give a wrapper, and each copy of it, access to the batch norm named by ``wrapper.norm``."""

    @abstractmethod
    def norm_factor(self, wrapper: Any) -> Any:
        """Return the factor of that batch norm for each channel, from its running statistics."""

    @abstractmethod
    def freeze_norms(self, model: Any, paths: Iterable[str]) -> list[Any]:
        """Make batch norms use their running statistics in training; return removable handles."""

    def thaw_norms(self, model: Any) -> None:  # noqa: B027
        """Update the model after the handles of :meth:`freeze_norms` were removed."""

    @abstractmethod
    def refinement(
        self, quantizer: Any, batches: Sequence[Any], forward: Callable[..., Any] | None
    ) -> Any:
        """Return an object that adapts the parameters of a quantized model to reduce its error."""
