"""Where a model is quantized, and how it is run in its own framework: the same for torch and Keras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.errors import ExportError
from lilliput.ops.qparams import QParams

if TYPE_CHECKING:
    from lilliput.export.sizes.axes import Axis

Array = np.ndarray[Any, Any]
Tensor = Any
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Key = tuple[int, int, QuantType]
Marker = Callable[[Any, QuantType, tuple[Tensor, ...]], tuple[Tensor, ...]]

DOMAIN = "lilliput"  # of the ``Site`` nodes of a trace


def to_array(tensor: Tensor) -> Array:
    """Return a tensor of any framework as a NumPy array; bfloat16 becomes float32."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return np.asarray(tensor)


@dataclass(eq=False)
class Place:
    """One tensor of one layer that is quantized: its weight, or its inputs, or its outputs.

    Parameters
    ----------
    wrapper : QuantizerModuleWrapper
        The layer.
    quant_type : QuantType
        Which of its tensors.
    qparams : QParams, optional
        The integer grid, None if the algorithm has none.
    results : list of tuples of tensors
        What the simulation made of it, call by call; empty unless asked for.
    """

    wrapper: Any
    quant_type: QuantType
    qparams: QParams | None = None
    results: list[tuple[Tensor, ...]] = field(default_factory=list)
    _held: Array | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        """What this place has in common with itself in another run."""
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
        """Whether the weight is held in half precision."""
        return "16" in str(self._weight().dtype)

    def weight(self) -> Array:
        """Return what the layer computes with: masked and quantized; as it was when first asked."""
        if self._held is None:
            self._held = to_array(self._weight())
        return self._held

    def _weight(self) -> Tensor:
        return getattr(self.wrapper.module, self.wrapper.layer_info.weight_name)


def key_of(wrapper: Any, quant_type: QuantType) -> Key:
    """Return what identifies a tensor of a layer; tracing shows proxies in place of wrappers."""
    return id(wrapper.layer_info), id(wrapper.compressor), quant_type


@dataclass(eq=False)
class Simulation(ABC):
    """What the model does in its framework: its places, and its outputs on the example inputs."""

    model: Any
    inputs: Inputs
    places: list[Place]
    outputs: list[Tensor]
    names: list[str]
    axes: tuple[Axis, ...] = ()

    @abstractmethod
    def again(self, inputs: Inputs, keep: bool = False) -> Simulation:
        """Run the model on other inputs; ``keep`` what every quantizer returns."""

    @abstractmethod
    def run(self, marker: Marker) -> list[Tensor]:
        """Run the model on the inputs with a marker in place of the quantizers."""

    @abstractmethod
    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""

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

    @abstractmethod
    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with other sizes, by the names of axes; ``batch`` is the number of rows."""

    @abstractmethod
    def tensor(self, array: Array, like: Tensor) -> Tensor:
        """Return an array as a tensor of the framework, where another one is."""


def note_defaults(places: list[Place]) -> list[str]:
    """Return what the user should know of layers that are quantized although no rule names them."""
    notes = []
    for place in places:
        decisions = place.wrapper.compressor.selection.decisions if place.is_weight else ()
        for decision in decisions:
            if decision.default and decision.layer.name == place.wrapper.name:
                notes.append(
                    f"{place.wrapper.name}: {decision.default}, which is quantized to 8 bits by default. "
                    'To keep it in float, add the rule {"op_types": ["Embedding"], "exclude": True}.'
                )
    return notes


def first_line(error: BaseException, skip: int = 0) -> str:
    """Return the first line of what an error says, or one further down."""
    lines = [line for line in str(error).splitlines() if line.strip()][skip:]
    return shorten(lines[0], 300, placeholder=" …") if lines else ""
