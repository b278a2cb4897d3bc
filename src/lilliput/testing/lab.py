"""The framework interface of the checks: tiny models, their training, and their weights as NumPy arrays.

A lab is a module (or any object) with these names. The checks are written once, in terms of a lab, and
are otherwise independent of the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from lilliput.core.compressor import Compressor

Array = Any  # a NumPy array; bfloat16 of torch is converted to float32
Model = Any
Optimizer = Any
Weight = Any  # the framework's trained object: a Parameter, or a Variable


class Lab(Protocol):
    """The framework interface of the checks.

    Attributes
    ----------
    SPECIMENS : mapping of str to callable
        How to create each kind of test model. All labs have 'cnn' and 'mlp'; the others depend
        on the framework.
    LAYER_KINDS, FEW : tuple of str
        One kind for each way in which a layer can store its weight, and those for checks that need
        only some models.
    STEPS : int
        The number of training steps that show an effect on the weights.
    DEFAULT_TYPES : frozenset of str
        The layer types that algorithms compress by default.
    SIMPLE_TYPES : tuple of str
        The layers of 'cnn' and 'mlp' that have a weight.
    """

    SPECIMENS: Mapping[str, Callable[[], Model]]
    LAYER_KINDS: tuple[str, ...]
    FEW: tuple[str, ...]
    STEPS: int
    DEFAULT_TYPES: frozenset[str]
    SIMPLE_TYPES: tuple[str, ...]

    def isolated(self) -> AbstractContextManager[None]:
        """Return a context on one thread that restores random generators."""

    def set_seed(self, seed: int) -> None:
        """Seed all generators that an algorithm is likely to use."""

    # -- models

    def types_in(self, kind: str) -> frozenset[str]:
        """Return the types of the layers of a kind of model."""

    def like(self, model: Model) -> Model:
        """Return a fresh plain model of the same kind and dtype, with other weights."""

    def outputs(self, model: Model, training: bool = False) -> Array:
        """Return the outputs of a model for its test batch."""

    def gradients(self, model: Model, distiller: Any = None) -> dict[int, Array | None]:
        """Return the gradient of a loss in training for each weight, by the weight's id.

        With a distiller, it is the gradient of the distance to its teacher.
        """

    def compare(self, model: Model, distiller: Any) -> tuple[Array, Array]:
        """Return a model's training output, and its distance to the teacher by a distiller."""

    def batch(self, model: Model) -> Any:
        """Return the input of a model."""

    def run_layer(self, layer: Any, inputs: tuple[Any, ...]) -> Array:
        """Return the output of one layer, without gradient."""

    def parts(self, model: Model, optimizer: Optimizer = None) -> tuple[dict[str, Any], ...]:
        """Return two mappings of the parts of a model: by identity, and by value."""

    def holds(self, model: Model, tensor: Any) -> bool:
        """Whether a tensor is part of the model, and not trained."""

    # -- weights

    def weights(self, model: Model) -> dict[str, Weight]:
        """Return everything that a model saves to its files, or would save without a compressor."""

    def raw(self, layer: Any, name: str) -> Weight:
        """Return the weight behind an attribute of a layer."""

    def read(self, tensor: Any) -> Array:
        """Return a copy of a weight or tensor."""

    def write(self, weight: Weight, value: Array) -> None:
        """Overwrite a weight in place."""

    def tensor(self, value: Array) -> Any:
        """Return an array in a form that a wrapper can store."""

    def describe(self, tensor: Any) -> tuple[Any, ...]:
        """Return the shape, the dtype as 'float32' and, if it matters, the device of a tensor."""

    # -- training

    def optimizer(self, model: Model, name: str = "sgd") -> Optimizer:
        """Prepare a model for training, and return its optimizer.

        'sgd' has momentum and weight decay, 'momentum' has no decay, 'adamw' two moments.
        """

    def train(
        self, model: Model, optimizer: Optimizer, steps: int, compressor: Compressor | None = None
    ) -> None:
        """Train for some steps; call ``step()`` by hand for a compressor without an optimizer.

        The loss includes that of the compressor, if it is a distiller.
        """

    def use(
        self, model: Model, optimizer: Optimizer, compressor: Compressor | None = None
    ) -> Array:
        """Train a model, evaluate it and predict with it, as users do; return the predictions."""

    def ways_to_run(
        self, model: Model, optimizer: Optimizer
    ) -> Iterable[tuple[bool, Callable[[], Any]]]:
        """Return ways to run a model, each with whether it is training."""

    def held(self, optimizer: Optimizer) -> list[Weight]:
        """Return the weights that an optimizer updates."""

    def learned(self, wrapper: Any) -> dict[str, Weight]:
        """Return the trained parameters that an algorithm has added to its wrapper."""

    # -- files

    def load_plain(self, model: Model, plain: Model, folder: Path) -> None:
        """Load the weights of a plain model into a compressed one, via a file."""

    def resume(
        self,
        model: Model,
        optimizer: Optimizer,
        compress: Callable[[Model, Optimizer], Compressor],
        folder: Path,
    ) -> tuple[Model, Optimizer, Compressor]:
        """Move a compressed model and its optimizer to another process, via files.

        Return another compressed model, with the weights and the optimizer state of
        this one; the compressor's own state is still missing.
        """


@dataclass(frozen=True)
class Entry:
    """One weight or bias of a compressed model, as seen by one of its owners.

    Arrays are copies, taken on first access.
    """

    lab: Lab
    wrapper: Any
    owner: Any
    name: str
    role: str

    @cached_property
    def label(self) -> str:
        """The weight's name in the model."""
        return f"{self.owner.path}.{self.name}" if self.owner.path else self.name

    @cached_property
    def weight(self) -> Weight:
        """The framework's trained object."""
        return self.lab.raw(self.owner.module, self.name)

    @cached_property
    def raw(self) -> Array:
        """The values of the weight."""
        return self.lab.read(self.weight)

    @cached_property
    def seen_tensor(self) -> Any:
        """The tensor that the layer uses."""
        return getattr(self.owner.module, self.name)

    @cached_property
    def seen(self) -> Array:
        """The values that the layer uses."""
        return self.lab.read(self.seen_tensor)

    @cached_property
    def mask_tensor(self) -> Any:
        """The mask stored in the wrapper, or None."""
        return self.wrapper.tensors().get(f"{self.role}_mask")

    @cached_property
    def mask(self) -> Array | None:
        """The values of the mask, or None."""
        return None if self.mask_tensor is None else self.lab.read(self.mask_tensor)

    @cached_property
    def pruned(self) -> Array:
        """Where the weight is zero because of a mask, and not incidentally as in a new bias."""
        is_zero = self.seen == 0
        return is_zero if self.mask is None else is_zero & (self.mask == 0)
