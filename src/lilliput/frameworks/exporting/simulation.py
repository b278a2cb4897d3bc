"""Quantizer placements of a model, and its simulation in torch or Keras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any, Protocol, TypeVar

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError, ExportError, LilliputError
from lilliput.frameworks import backend_of
from lilliput.frameworks.exporting.sizes import Axis
from lilliput.frameworks.wrapping import Marker, marking, step_aside
from lilliput.ops.qparams import QParams

Array = np.ndarray[Any, Any]
Tensor = Any
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Key = tuple[int, int, QuantType]
AnySimulation = TypeVar("AnySimulation", bound="Simulation")

DOMAIN = "lilliput"  # of the ``Mark`` nodes in a trace


def to_array(tensor: Tensor) -> Array:
    """Return a tensor of any framework as a NumPy array; bfloat16 becomes float32."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return np.asarray(tensor)


@dataclass(eq=False)
class Placement:
    """One quantized tensor of one layer: its weight, inputs or outputs.

    Parameters
    ----------
    wrapper : QuantizerModuleWrapper
        The layer.
    quant_type : QuantType
        Which of its tensors.
    qparams : QParams, optional
        The integer grid, or None if the algorithm has none.
    results : list of tuples of arrays
        The results of the simulation, call by call; empty unless requested.
    found : OnGrid, optional
        The integers of a weight, once computed.
    """

    wrapper: Any
    quant_type: QuantType
    qparams: QParams | None = None
    results: list[tuple[Array, ...]] = field(default_factory=list)
    found: Any = field(default=None, repr=False)
    _held: Array | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        """The identity of this placement across runs."""
        return key_of(self.wrapper, self.quant_type)

    @property
    def name(self) -> str:
        """The layer and the tensor, as in ``conv1.weight``."""
        return f"{self.wrapper.name}.{self.quant_type.value}"

    @property
    def is_weight(self) -> bool:
        """Whether this is a weight."""
        return self.quant_type is QuantType.WEIGHT

    @property
    def is_half(self) -> bool:
        """Whether the weight is in half precision."""
        return "16" in str(self._weight().dtype)

    def weight(self) -> Array:
        """Return the weight that the layer uses, masked and quantized; computed on first use."""
        if self._held is None:
            self._held = to_array(self._weight())
        return self._held

    def _weight(self) -> Tensor:
        return getattr(self.wrapper.module, self.wrapper.layer_info.weight_name)


def key_of(wrapper: Any, quant_type: QuantType) -> Key:
    """Return the identity of a tensor of a layer; tracing passes proxies instead of wrappers."""
    return id(wrapper.layer_info), id(wrapper.compressor), quant_type


@dataclass(frozen=True)
class Mark:
    """One quantization in a trace: its placement, the index of the tensor, and the call."""

    placement: int
    position: int
    call: int


@dataclass(eq=False)
class Simulation(ABC):
    """The simulation of a model: its quantizer placements, and its outputs for the example inputs."""

    model: Any
    inputs: Inputs
    placements: list[Placement] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    axes: tuple[Axis, ...] = ()
    _seen: list[tuple[Inputs, list[Tensor]]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls: type[AnySimulation], model: Any, inputs: Inputs, keep: bool = False
    ) -> AnySimulation:
        """Run a model for inference; ``keep`` the results of all quantizers."""
        found, placements = cls(model, inputs), dict[Key, Placement]()
        quantize = found.marker(as_simulated)

        def record(
            wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]
        ) -> tuple[Tensor, ...]:
            results = quantize(wrapper, kind, tensors)
            placement = placements.setdefault(key_of(wrapper, kind), Placement(wrapper, kind))
            if keep and not placement.is_weight:
                placement.results.append(tuple(np.array(to_array(x)) for x in results))
            return results

        with found.explained():
            output = found.run_with(record)
        found.outputs, found.names = found.tensors(output), found.output_names(output)
        found.check_outputs()
        with backend_of(model).no_grad():
            for placement in placements.values():
                placement.qparams = _qparams_of(placement)
        found.placements = list(placements.values())
        return found

    def again(self: AnySimulation, inputs: Inputs, keep: bool = False) -> AnySimulation:
        """Run the model on other inputs; ``keep`` the results of all quantizers of the current model."""
        if keep:
            return type(self).of(self.model, inputs, keep)
        other = replace(self, inputs=inputs)
        seen = next((outputs for given, outputs in self._seen if given is inputs), None)
        with other.explained():
            other.outputs = other.run(as_simulated) if seen is None else seen
        other.check_outputs()
        return other

    def run(self, marker: Marker) -> list[Tensor]:
        """Run the model on the inputs with a marker instead of the quantizers of activations."""
        return self.tensors(self.run_with(self.marker(marker)))

    def look_at(self, inputs: Inputs) -> None:
        """Run the model on inputs for hooks to observe; :meth:`again` then need not run it."""
        self._seen.append((inputs, replace(self, inputs=inputs).run(as_simulated)))

    def forget(self) -> None:
        """Release the memory of intermediate results."""
        self._seen.clear()
        for placement in self.placements:
            placement.found = None

    def takes(self, inputs: Inputs) -> bool:
        """Whether the model runs on other inputs and returns numbers."""
        try:
            return _are_numbers(replace(self, inputs=inputs).run(step_aside))
        except Exception:  # any error of the model's own code
            return False

    def run_with(self, marker: Marker) -> Any:
        """Return the model's outputs with a marker instead of all quantizers."""
        with marking(marker, backend_of(self.model).quantizers_in(self.model)):
            return self.call()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise an error that describes the inputs on which the model does not run."""
        try:
            yield
        except LilliputError:
            raise
        except Exception as error:
            shapes = [tuple(x.shape) for x in self.tensors(self.inputs)]
            raise ExportError(
                f"{type(self.model).__name__} does not run on the example inputs (shapes {shapes}): "
                f"{self.reason_of(error)}"
            ) from error

    def check_outputs(self) -> None:
        """Raise if the model has no outputs to compare a file with."""
        if not _are_numbers(self.outputs):
            raise ExportError(
                f"{type(self.model).__name__} returns nothing, NaN or infinity for the example inputs; pass "
                "realistic inputs."
            )

    def by_name(self, names: Sequence[str], inputs: Inputs | None = None) -> dict[str, Tensor]:
        """Return the inputs by the names they have in a file."""
        args, kwargs = inputs = inputs or self.inputs
        if not args and set(names) <= kwargs.keys():
            return {name: kwargs[name] for name in names}
        tensors = self.tensors(inputs)
        if len(tensors) != len(names):
            raise ExportError(
                f"the file has inputs {list(names)}, but the model is called with {len(tensors)} tensors."
            )
        return dict(zip(names, tensors, strict=True))

    def reason_of(self, error: BaseException) -> str:
        """Return an error message as one line."""
        return f"{type(error).__name__}: {first_line(error)}"

    @abstractmethod
    def call(self) -> Any:
        """Return the model's outputs for the inputs, in inference mode."""

    @abstractmethod
    def marker(self, others: Marker) -> Marker:
        """Return a marker that quantizes weights once for all runs, and activations by ``others``."""

    @abstractmethod
    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""

    @abstractmethod
    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with other sizes, by the names of axes; ``batch`` is the number of rows."""

    @abstractmethod
    def input_names(self) -> list[str]:
        """Return the names of the inputs in the file."""

    @abstractmethod
    def output_names(self, output: Any) -> list[str]:
        """Return the names of the outputs in the file: the keys of a dict, or numbers."""


class Simulating(Protocol):
    """The module ``export.simulation`` of a framework."""

    def model_of(self, quantizer_or_model: Any) -> Any:
        """Return the model to export, or raise an error with the reason."""

    def as_inputs(self, example_inputs: Any) -> Inputs:
        """Return example inputs as the arguments of a call."""

    def like_example(self, batch: Any, inputs: Inputs) -> Inputs:
        """Return a batch, possibly with labels, as the arguments of such a call."""

    def simulate(self, model: Any, inputs: Inputs) -> Simulation:
        """Run a model in inference mode, and record its quantizer placements."""

    def plain_source(self, model: Any, example_inputs: Any) -> tuple[Any, Any]:
        """Return a copy of a model without compressors, and inputs for timing it."""


def as_simulated(wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Quantize; a marker that does not change what the model computes."""
    results: tuple[Tensor, ...] = wrapper._quantizer().run(wrapper, kind, tensors)
    return results


def numbered(count: int, word: str) -> list[str]:
    """Return names for some tensors; a single one has no number."""
    return [word] if count == 1 else [f"{word}_{i}" for i in range(count)]


def model_under(quantizer_or_model: Any) -> Any:
    """Return the model that a compressor is attached to; anything else is returned unchanged."""
    model = getattr(quantizer_or_model, "bound_model", quantizer_or_model)
    if model is not quantizer_or_model and not getattr(quantizer_or_model, "is_wrapped", False):
        raise ExportError(
            f"{type(quantizer_or_model).__name__} is not attached to a model; call compress() before "
            "exporting, or pass the model itself to export it without compression."
        )
    return model


def _are_numbers(outputs: Sequence[Tensor]) -> bool:
    arrays = [to_array(x) for x in outputs]
    return bool(arrays) and all(x.size and np.isfinite(x).all() for x in arrays)


def _qparams_of(placement: Placement) -> QParams | None:
    """Return the grid of a placement with NumPy arrays, since tensors cannot be read while tracing."""
    quantizer = placement.wrapper._quantizer()
    found = quantizer.qparams(placement.wrapper, placement.quant_type)
    if found is None:
        return None
    if not isinstance(found, QParams):
        raise AlgorithmError(
            f"{type(quantizer).__name__}.qparams() returned {type(found).__name__} for "
            f"{placement.name}; expected a QParams, or None."
        )
    return replace(found, scale=to_array(found.scale), zero_point=to_array(found.zero_point))


def first_line(error: BaseException, skip: int = 0) -> str:
    """Return the first informative line of an error message."""
    lines = [line for line in str(error).splitlines() if line.strip()][skip:]
    return shorten(lines[0], 300, placeholder=" …") if lines else ""
