"""What the engine asks of a framework. One subclass per framework, and nothing else touches it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.errors import StageError
from lilliput.frameworks.features import Run
from lilliput.graph.ir import Graph
from lilliput.ops.flow import Flow
from lilliput.ops.grad import QuantGrad


class Backend(ABC):
    """The engine's view of a framework."""

    name: ClassVar[str]
    default_types: ClassVar[frozenset[str]]
    # Layers whose integer kernels, in the runtimes that the framework's users have, return integers.
    integer_outputs: ClassVar[frozenset[str]] = frozenset({"_ConvNd"})
    dynamic_inputs: ClassVar[frozenset[str]] = frozenset({"Linear"})

    @abstractmethod
    def layers(self, model: Any) -> list[LayerInfo]:
        """Return every layer of the model that could be compressed, in the model's order."""

    def reshard(self, model: Any) -> None:  # noqa: B027
        """Bring the raw weights into the place where the optimizer finds them."""

    def announce_buffers(self, model: Any) -> None:  # noqa: B027
        """Tell whoever holds the model that its buffers have come or gone."""

    @abstractmethod
    def is_known_type(self, name: str) -> bool:
        """Whether the framework has a layer class of that name."""

    @abstractmethod
    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> Any:
        """Return a new wrapper (``kind`` is 'pruner' or 'quantizer'); the model stays untouched."""

    @abstractmethod
    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers that are at work in a model, and in no copy of it."""

    @abstractmethod
    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Raise if two weights share memory without being one parameter."""

    @abstractmethod
    def parts(self, model: Any) -> list[tuple[str, Any]]:
        """Return the layers and parameters of a model by name, which :meth:`layers` is made from."""

    def check_unchanged(
        self,
        model: Any,
        wrappers: Sequence[Any],
        parts: Sequence[tuple[str, Any]],
        find_layers: Callable[[], Iterable[LayerInfo]],
    ) -> None:
        """Raise if the model's layers are no longer those the wrappers were made for.

        The layers are looked up again only if the parts of the model are not what they were.
        """
        now = self.parts(model)
        if len(now) == len(parts) and all(
            name == known and part is other
            for (name, part), (known, other) in zip(now, parts, strict=True)
        ):
            return
        layers = {layer.name: layer for layer in find_layers()}
        parameters = self.parameters(model)
        for wrapper in wrappers:
            current = parameters if wrapper.layer_info.is_parameter else layers
            found = current.get(wrapper.name)
            owners = [] if found is None else [owner.module for owner in found.owners]
            if owners != [owner.module for owner in wrapper.layer_info.owners]:
                raise StageError(
                    f"layer {wrapper.name!r} was replaced, or its weight tied, after the compressor "
                    "was made; make the compressor when the model is complete."
                )

    @abstractmethod
    def attach(self, wrapper: Any) -> None:
        """Make the layer compute with what the wrapper says."""

    @abstractmethod
    def settle(self, wrappers: Sequence[Any]) -> None:
        """Leave the pruned zeros in the raw weights for good, or raise and change nothing."""

    @abstractmethod
    def detach(self, wrapper: Any) -> None:
        """Undo :meth:`attach` exactly."""

    # -- a student and its teacher ---------------------------------------------------------------------

    @abstractmethod
    def modules(self, model: Any) -> list[LayerInfo]:
        """Return the model itself, as ``features.MODEL``, and everything in it that can be called."""

    @abstractmethod
    def frozen_copy(self, model: Any) -> Any:
        """Return a copy to learn from, or raise where the model is no longer what it was."""

    @abstractmethod
    def move_like(self, teacher: Any, model: Any) -> None:
        """Bring a teacher to the device of a model."""

    @abstractmethod
    def record(self, model: Any, wrappers: Sequence[Any], task: Callable[[Run], None]) -> list[Any]:
        """Call ``task(run)`` after each forward that can be trained by; return removable handles."""

    @abstractmethod
    def outputs_of(
        self,
        model: Any,
        names: Sequence[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        forward: Callable[[Any], Any] | None = None,
    ) -> dict[str, list[Any]]:
        """Run a model in evaluation mode, without gradients, and return what layers returned.

        ``forward(model)`` runs it in place of a call with these arguments.
        """

    @abstractmethod
    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return example inputs as what a model is called with."""

    @abstractmethod
    def learned(self, array: Any, like: Any) -> Any:
        """Return a NumPy array as a tensor that an optimizer trains, where another tensor is."""

    @abstractmethod
    def channel_axis(self, rank: int) -> int:
        """Return where a tensor of that many axes has its channels, by the framework's custom."""

    @abstractmethod
    def are_shares(self, tensor: Any, axis: int) -> bool:
        """Whether values are known to be probabilities, which add up to 1 along an axis."""

    def ends_in_softmax(self, module: Any) -> bool:
        """Whether what a layer returns is known, before it runs, to come from a softmax."""
        return False

    def is_tracing(self) -> bool:
        """Whether this code runs to build a graph, so that tensors have no values."""
        return False

    def average_gradients(self, parameters: Sequence[Any]) -> list[Any]:
        """Average gradients over processes in each backward; return removable handles."""
        return []

    def check_inputs(self, run: Run) -> None:  # noqa: B027
        """Raise if the inputs of a run have been written to since."""

    def check_trainable(self, tensor: Any, name: str) -> None:  # noqa: B027
        """Raise if no gradient goes through what a layer returned."""

    @abstractmethod
    def on_forward(self, wrapper: Any, collector: Callable[..., Any]) -> list[Any]:
        """Call ``collector(wrapper, input_, output)`` after each forward; return removable handles."""

    # Whether hooks on an optimizer see every step; not where training is compiled as a whole.
    sees_every_step: ClassVar[bool] = True

    @abstractmethod
    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call ``task()`` after each optimizer step; return a removable handle."""

    # Whether activations and gradients can be looked at while the model trains; not in compiled training.
    shows_training: ClassVar[bool] = True

    @abstractmethod
    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call ``task()`` when the gradients of an optimizer step are there; return a removable handle."""

    def callback(self, compressor: Any) -> Any:
        """Return what a training loop of the framework's own calls on behalf of a compressor."""
        raise StageError(
            f"callback() is for Keras models; with {self.name}, give the compressor the optimizer, or "
            "call step() and update_epoch() yourself."
        )

    @abstractmethod
    def parameters(self, model: Any) -> dict[str, LayerInfo]:
        """Return each parameter under all its full names, as a layer that can be wrapped."""

    @abstractmethod
    def to_mask(self, keep: Any, wrapper: Any) -> Any:
        """Return a NumPy array of booleans as a tensor on the device of a wrapper's weight."""

    @abstractmethod
    def sum_over_processes(self, tensor: Any) -> Any:
        """Return the sum of a tensor over all processes that train together."""

    @abstractmethod
    def gradient(self, wrapper: Any, optimizer: Any = None) -> Any:
        """Return the gradient of a wrapper's raw weight in full, None if there is none.

        Without the loss scale that the optimizer has yet to divide by.
        """

    @abstractmethod
    def penalize_learned(
        self, wrapper: Any, name: str, penalty: Callable[[Any], Any], optimizer: Any
    ) -> None:
        """Add ``penalty(value)`` of a learned parameter to the loss.

        Before each step where gradients are shown, once and for all where they are not.
        """

    def show_gradients(self, wrappers: Sequence[Any], is_shown: bool) -> None:
        """Let pruned weights get the gradients that they would have, until they are masked again."""
        raise NotImplementedError(f"{self.name} shows no gradients of weights.")

    @abstractmethod
    def pull_to_zero(self, wrappers: Sequence[Any], scale: float, optimizer: Any = None) -> None:
        """Add the subgradient of ``scale * |w|`` to the gradients of the raw weights."""

    def penalize(self, wrappers: Sequence[Any], scale: float) -> None:  # noqa: B027
        """Add ``scale * |w|`` to the loss, 0 to end it; for frameworks without :meth:`pull_to_zero`."""

    def is_activated(self, layer: LayerInfo) -> bool:
        """Whether what a layer returns has gone through an activation function of its own."""
        return False

    @abstractmethod
    def is_training(self, model: Any) -> bool:
        """Whether the forward that is going on is one of training."""

    def is_recomputing(self) -> bool:
        """Whether this forward repeats an earlier one within backward (activation checkpointing)."""
        return False

    def when_recomputing(self, like: Any) -> Any:
        """Return a tensor that says so as compiled code runs, None where :meth:`is_recomputing` does."""
        return None

    def may_be_recomputed(self) -> bool:
        """Whether this forward may be repeated within backward."""
        return False

    @abstractmethod
    def run(
        self,
        model: Any,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None,
        task: Callable[[], None] | None = None,
    ) -> None:
        """Run batches through a model in eval mode; with a task, ``forward`` is a loss to derive."""

    def on_gradient(self, tensor: Any, task: Callable[[Any], None]) -> None:
        """Call ``task(gradient)`` when the gradient of a tensor is computed."""
        raise NotImplementedError(f"{self.name} shows no gradients of activations.")

    def probe(self, outputs: Any) -> Any:
        """Return a number whose gradient shows, on average, how much outputs depend on a tensor."""
        raise NotImplementedError(f"{self.name} shows no gradients of activations.")

    @abstractmethod
    def feeder(self, example_inputs: Any) -> Callable[..., Any]:
        """Return ``forward(model, batch)``, which calls a model with a batch of a data loader."""

    @abstractmethod
    def remember(self, model: Any) -> Any:
        """Return every value and mode of a model; ``restore()`` and ``restore_modes()`` go back."""

    @abstractmethod
    def model_tensors(self, model: Any) -> dict[str, Any]:
        """Return every tensor of a model by a name that stays the same."""

    @abstractmethod
    def load_model(self, model: Any, tensors: dict[str, Any]) -> None:
        """Put tensors of :meth:`model_tensors` back into a model."""

    @abstractmethod
    def graph(self, model: Any, example_inputs: Any) -> Graph:
        """Return the ops of a model as data; the model is only read."""

    @abstractmethod
    def needs_example(self, model: Any) -> bool:
        """Whether :meth:`graph` cannot do without example inputs."""

    def narrow_norms(self, wrappers: Sequence[Any]) -> None:  # noqa: B027
        """Make norm layers take their statistics over kept channels; called after masks changed."""

    def narrow_again(self, model: Any) -> None:  # noqa: B027
        """Do it for the pruners that are still at work on a model, after one has left."""

    def widen_norms(self, model: Any) -> list[str]:
        """Undo :meth:`narrow_norms`, and return which layers this concerned."""
        return []

    @abstractmethod
    def adopt(self, optimizer: Any, wrappers: Sequence[Any]) -> list[Any]:
        """Let the optimizer train the wrappers' own parameters; return removable handles."""

    @abstractmethod
    def check_optimizer(self, optimizer: Any, wrappers: Sequence[Any]) -> None:
        """Raise if the optimizer cannot be hooked or does not hold the weights."""

    def to_flags(self, mask: Any) -> Any:
        """Return a mask that passed :meth:`check_mask` as booleans, a copy."""
        return mask != 0

    @abstractmethod
    def check_mask(self, wrapper: Any, key: str, mask: Any) -> str | None:
        """Return what is wrong with a mask for this wrapper, or None."""

    @abstractmethod
    def apply_masks(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Zero the pruned weights, and the optimizer's memory of them, in place."""

    @abstractmethod
    def harden(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Write what soft layers compute with into their raw weights, and mask these from then on."""

    @abstractmethod
    def hold_masks(self, wrappers: Sequence[Any]) -> None:
        """Put pruned weights that an optimizer step has moved back to zero, in place."""

    @abstractmethod
    def tensor(self, value: float, wrapper: Any) -> Any:
        """Return a number as a float32 tensor where a wrapper's layer is."""

    # Whether optimizers of the framework keep a parameter above its bound by themselves.
    keeps_bounds: ClassVar[bool] = False

    @abstractmethod
    def parameter(self, value: Any, at_least: float | None = None) -> Any:
        """Return a tensor as one that an optimizer trains, with a bound if :attr:`keeps_bounds`."""

    @abstractmethod
    def masked_weight(self, wrapper: Any) -> Any:
        """Return a layer's raw weight with its masks applied, without gradient."""

    @abstractmethod
    def flow(self, model: Any, example_inputs: Any) -> Flow:
        """Run a model once, and return how tensors flow through it."""

    def known_flow(self, model: Any) -> Flow | None:
        """Return how tensors flow through a model whose graph is known without running it."""
        return None

    @abstractmethod
    def on_call(self, model: Any, task: Callable[[Any, Any], None]) -> Any:
        """Call ``task(args, kwargs)`` before each forward of a model; return a removable handle."""

    @abstractmethod
    def flow_of_batch(self, model: Any, batch: Any, forward: Callable[..., Any] | None) -> Flow:
        """Do the same with a batch of a data loader."""

    @abstractmethod
    def keep_sites(self, wrapper: Any, roles: Collection[str]) -> None:
        """Quantize a layer's input and output at the layer itself only if ``roles`` names them."""

    @abstractmethod
    def add_site(self, model: Any, path: str, wrapper: Any, role: str) -> Any:
        """Quantize what a module returns on behalf of a layer; return a removable handle."""

    @abstractmethod
    def hold_norm(self, model: Any, wrapper: Any) -> None:
        """Let a wrapper, and each copy of it, know the batch norm that ``wrapper.norm`` names."""

    @abstractmethod
    def norm_factor(self, wrapper: Any) -> Any:
        """Return by what that batch norm multiplies each channel, by its running statistics."""

    @abstractmethod
    def freeze_norms(self, model: Any, paths: Iterable[str]) -> list[Any]:
        """Make batch norms use their running statistics in training; return removable handles."""

    def thaw_norms(self, model: Any) -> None:  # noqa: B027
        """Follow up on the handles of :meth:`freeze_norms` having been removed."""

    @abstractmethod
    def refinement(
        self, quantizer: Any, batches: Sequence[Any], forward: Callable[..., Any] | None
    ) -> Any:
        """Return what changes the parameters under a quantizer so that less is lost by it."""

    def watch_join(self, model: Any) -> list[Any]:
        """Note whether processes may make different numbers of steps; return removable handles."""
        return []

    def is_joining(self, model: Any) -> bool:
        """Whether other processes may have stopped training, so that none can wait for them."""
        return False

    def processes(self) -> int:
        """Return how many processes work together."""
        return 1

    @abstractmethod
    def process_index(self) -> int:
        """Return the number of this process among those that work together, 0 if it is alone."""

    @abstractmethod
    def average(self, tensors: Sequence[Any]) -> bool:
        """Average tensors in place over all processes that train together; False if this is alone."""

    @abstractmethod
    def reduce(self, array: Any, how: str) -> Any:
        """Return the 'min', 'max' or 'sum' of a NumPy array over all processes that work together."""

    @abstractmethod
    def quantize(
        self,
        tensors: tuple[Any, ...],
        function: Callable[..., Any],
        rule: type[QuantGrad] | None,
        quant_type: QuantType,
    ) -> tuple[Any, ...]:
        """Return what ``function`` makes of the tensors, with the gradient that ``rule`` prescribes."""

    def value_of(self, tensor: Any) -> Any:
        """Return what an author's code computes with, where the engine has a variable."""
        return tensor

    @abstractmethod
    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of this framework."""

    @abstractmethod
    def no_grad(self) -> AbstractContextManager[Any]:
        """A context in which no gradient is recorded."""

    @abstractmethod
    def export(
        self,
        model: Any,
        wrappers: Sequence[Any],
        model_path: str,
        mask_path: str | None,
        onnx_path: str | None,
        input_shape: tuple[int, ...] | None,
        device: Any,
    ) -> None:
        """Write the compressed model as a plain one."""

    @abstractmethod
    def dump_tensors(self, tensors: dict[str, Any]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""

    @abstractmethod
    def parse_tensors(self, data: bytes) -> dict[str, Any]:
        """Return the tensors of a safetensors file."""
