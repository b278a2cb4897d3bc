"""The Keras backend: find layers, wrap them, follow training, keep pruned weights at zero."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
from keras import ops

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.errors import (
    ConfigError,
    StageError,
    StateError,
    UnsupportedModelError,
)
from lilliput.frameworks.base import Backend
from lilliput.frameworks.features import Run
from lilliput.frameworks.keras import copies, effects, features, files, instrument, penalty, running
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.discover import (
    DEFAULT_TYPES,
    discover,
    find_parameters,
    layers_by_path,
    parts_of,
)
from lilliput.frameworks.keras.files import export_plain
from lilliput.frameworks.keras.flow import flow_of
from lilliput.frameworks.keras.functions import retrace
from lilliput.frameworks.keras.grad import with_gradient
from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.learned import Parameter
from lilliput.frameworks.keras.learning import AddedVariables, reconcile
from lilliput.frameworks.keras.masks import (
    apply_masks,
    check_quantizers,
    fault_of,
    moves_zeros,
    restart,
)
from lilliput.frameworks.keras.scopes import is_tracing, is_training, sync
from lilliput.frameworks.keras.variables import forget_in_torch, raw, tensor_of, to_array
from lilliput.frameworks.keras.wrapper import WRAPPERS, ModuleWrapper
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.graph.flow import Flow
from lilliput.graph.ir import Graph
from lilliput.ops.grad import QuantGrad

Tensor = Any


class KerasBackend(Backend):
    """The engine's interface, implemented for Keras."""

    name = "keras"
    default_types = DEFAULT_TYPES
    integer_outputs = frozenset({"_ConvNd", "Linear"})
    dynamic_inputs = frozenset()
    sees_every_step = False
    keeps_bounds = True
    shows_training = False

    # -- layers --------------------------------------------------------------------------------------

    def layers(self, model: Any) -> list[LayerInfo]:
        """Return every layer that can be compressed; see :mod:`discover`."""
        return discover(model)

    def parts(self, model: Any) -> list[tuple[str, Any]]:
        """Return the layers and variables of a model by name."""
        return parts_of(model)

    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers attached to a model."""
        return instrument.quantizers_in(layers_by_path(model).values())

    def parameters(self, model: Any) -> dict[str, LayerInfo]:
        """Return each trained variable under all its full names."""
        return find_parameters(model)

    def is_known_type(self, name: str) -> bool:
        """Whether ``keras.layers`` has a class of that name."""
        return isinstance(getattr(keras.layers, name, None), type)

    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> ModuleWrapper:
        """Return a new wrapper; the model is not changed."""
        for owner in layer.owners:
            policy = getattr(owner.module, "quantization_mode", None)
            if policy is not None:
                raise UnsupportedModelError(
                    f"layer {layer.name!r} was quantized by Keras itself ({policy}), which replaced its "
                    "weights; compress the float model."
                )
            if getattr(owner.module, "lora_enabled", False):
                raise UnsupportedModelError(
                    f"layer {layer.name!r} has LoRA weights besides its own; save and load the model, "
                    "which merges them, before compressing."
                )
            if kind == "quantizer" and owner.module.compute_dtype == "float64":
                raise UnsupportedModelError(
                    f"layer {layer.name!r} computes in float64; quantization is simulated in float32: "
                    "build the model with that dtype."
                )
        return WRAPPERS[kind](layer, compressor)

    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Do nothing: variables of Keras never share memory."""

    def attach(self, wrapper: ModuleWrapper) -> None:
        """Shadow the layer's attributes, in every layer that owns them."""
        models.enter(wrapper.compressor.bound_model, wrapper.compressor)
        for owner in wrapper.layer_info.owners:
            instrument.attach(owner.module, wrapper, owner.weight_name, owner.bias_name)

    def detach(self, wrapper: ModuleWrapper) -> None:
        """Remove the shadow."""
        sync(wrapper.compressor.bound_model)
        for owner in wrapper.layer_info.owners:
            instrument.detach(owner.module, wrapper)

    def announce_buffers(self, model: Any) -> None:
        """Discard the compiled functions; do nothing for a model without wrappers."""
        reconcile(model)
        models.leave_idle(model)
        forget_in_torch(model)
        retrace(model)

    # -- masks ---------------------------------------------------------------------------------------

    def write_zeros(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Write the pruned zeros into the raw weights; raise if a quantizer would change them."""
        check_quantizers(wrappers)
        self.harden(wrappers)
        self.apply_masks(wrappers)

    def to_mask(self, keep: Any, wrapper: ModuleWrapper) -> Any:
        """Return a NumPy array of booleans unchanged."""
        return np.asarray(keep)

    def to_flags(self, mask: Any) -> Any:
        """Return a mask of any type as a NumPy array of booleans."""
        return to_array(mask) != 0

    def check_mask(self, wrapper: ModuleWrapper, key: str, mask: Any) -> str | None:
        """Return the problem of a mask, or None."""
        return fault_of(wrapper, key, mask)

    def apply_masks(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Set pruned weights and their optimizer slots to zero."""
        apply_masks(wrappers, optimizer)

    def harden(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Assign the computed weights of soft layers to their raw variables."""
        soft = [wrapper for wrapper in wrappers if wrapper.keeps_raw()]
        for wrapper in soft:
            value = wrapper.transform("weight", tensor_of(wrapper.weight), [])
            _raw_weight(wrapper).assign(value)
            wrapper.set_attribute("is_soft", False)
        if soft:
            apply_masks(soft, optimizer)
            retrace(soft[0].compressor.bound_model)

    def hold_masks(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Reset pruned weights to zero after steps of Muon; other optimizers do not move them."""
        optimizer = (
            getattr(wrappers[0].compressor.bound_model, "optimizer", None) if wrappers else None
        )
        if optimizer is not None and moves_zeros(optimizer):
            apply_masks(wrappers)

    def masked_weight(self, wrapper: ModuleWrapper) -> Tensor:
        """Return the raw weight with all pruners applied."""
        weight = ops.stop_gradient(tensor_of(wrapper.weight))
        sidecar = instrument.sidecar_of(wrapper.module)
        name = str(wrapper.layer_info.weight_name)
        return weight if sidecar is None else ops.stop_gradient(sidecar.pruned(name, weight))

    # -- following the training ------------------------------------------------------------------------

    def on_forward(self, wrapper: ModuleWrapper, collector: Callable[..., Any]) -> list[Any]:
        """Register the collector on every layer that owns the weight."""
        owners = wrapper.layer_info.owners
        return [instrument.Collector(wrapper, collector).add_to(o.module) for o in owners]

    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Call the task after each step of an optimizer; see :mod:`model`."""
        return models.OptimizerTask(optimizer, task)

    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Raise: in a graph, nothing can run between gradients and the step."""
        raise UnsupportedModelError(
            "this algorithm reads gradients before each step, which is supported on torch models only."
        )

    def callback(self, compressor: Any) -> Any:
        """Return a callback that follows ``fit`` for a compressor."""
        return models.CompressionCallback(compressor)

    def restart_optimizer(self, model: Any, optimizer: Any) -> None:
        """Reset the optimizer to the values of a new one, with its steps counted from 0."""
        restart(model, getattr(model, "optimizer", None) if optimizer is None else optimizer)

    def check_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> None:
        """Raise if this is not a Keras optimizer, or it is built for other variables."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ConfigError(
                f"optimizer: received {type(optimizer).__name__!r}, expected a keras.optimizers.Optimizer "
                "(model.optimizer), or none: then pass the compressor's callback() to fit."
            )
        held = {id(v) for v in getattr(optimizer, "_trainable_variables", ())}
        weights = [raw(w.module, name) for w in wrappers if (name := w.layer_info.weight_name)]
        if optimizer.built and weights and not any(id(v) in held for v in weights):
            raise ConfigError(
                "optimizer: it contains none of the weights to compress; was it created for another model?"
            )

    def add_to_optimizer(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> list[Any]:
        """Add the wrappers' learned variables to the optimizer; see :mod:`learning`."""
        if not any(wrapper.learned() for wrapper in wrappers):
            return []
        added = AddedVariables(optimizer, wrappers[0].compressor.bound_model)
        for wrapper in wrappers:
            wrapper.put_slots()
        return [added]

    def gradient(self, wrapper: ModuleWrapper, optimizer: Any = None) -> Any:
        """Return the gradient that :meth:`run` has just computed."""
        found = running.gradients_in(wrapper.compressor.bound_model)
        return found.get(id(_raw_weight(wrapper)))

    def pull_to_zero(
        self, wrappers: Sequence[ModuleWrapper], scale: float, optimizer: Any = None
    ) -> None:
        """Raise, as :meth:`before_step` does."""
        raise UnsupportedModelError("this algorithm changes gradients: on torch models only.")

    def penalize(self, wrappers: Sequence[ModuleWrapper], scale: float) -> None:
        """Add a regularizer to the raw weights; see :mod:`penalty`."""
        if penalty.set_penalty([_raw_weight(wrapper) for wrapper in wrappers], scale):
            retrace(wrappers[0].compressor.bound_model)

    def add_penalty(
        self,
        wrapper: ModuleWrapper,
        names: Sequence[str],
        penalty: Callable[..., Any],
        optimizer: Any,
    ) -> None:
        """Add a regularizer to a learned variable, which Keras includes in the loss."""
        (name,) = names

        def in_the_loss(value: Any) -> Any:
            found = ops.cast(penalty(value), keras.config.floatx())  # same type as the losses
            return found - ops.stop_gradient(
                found
            )  # its gradient counts; reported losses are the user's

        wrapper.learned()[name].regularizer = in_the_loss

    def is_activated(self, layer: LayerInfo) -> bool:
        """Whether the layer has an activation other than the linear one."""
        own = getattr(layer.module, "activation", None)
        return own is not None and own is not keras.activations.linear

    def feeder(self, example_inputs: Any) -> Callable[..., Any]:
        """Return a function that calls a model with the inputs of a batch, as ``fit`` does."""
        return running.call

    def is_tracing(self) -> bool:
        """Whether a graph is being traced."""
        return is_tracing()

    def is_training(self, model: Any) -> bool:
        """Whether the current call is in training mode."""
        return is_training()

    # -- a student and its teacher ---------------------------------------------------------------------

    def modules(self, model: Any) -> list[LayerInfo]:
        """Return the model and every layer in it; see :mod:`features`."""
        return features.list_modules(model)

    def frozen_copy(self, model: Any) -> Any:
        """Return a copy that is not trained."""
        return features.frozen_copy(model)

    def move_like(self, teacher: Any, model: Any) -> None:
        """Do nothing: Keras places variables itself."""

    def record(
        self, model: Any, wrappers: Sequence[ModuleWrapper], task: Callable[[Run], None]
    ) -> list[Any]:
        """Observe the layers and the model itself."""
        return [features.Recorder(model, wrappers, task)]

    def outputs_of(
        self, model: Any, names: Sequence[str], run: Run, forward: Any = None
    ) -> dict[str, list[Any]]:
        """Call a model for inference, without gradients."""
        return features.outputs_of(model, names, run, forward)

    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs as ``fit`` takes them: as a single argument."""
        return (running.inputs_of(example_inputs),), {}

    def learned(self, array: Any, like: Tensor) -> Any:
        """Return an array in the precision of a tensor; the wrapper turns it into a variable."""
        return np.asarray(array, keras.backend.standardize_dtype(like.dtype))

    def channel_axis(self, rank: int) -> int:
        """Return the last axis, or that of the channels in the image data format."""
        is_first = rank > 3 and keras.config.image_data_format() == "channels_first"
        return 1 if is_first else -1

    def are_shares(self, tensor: Tensor, axis: int) -> bool:
        """Whether values are probabilities, if they are known."""
        return features.are_shares(tensor, axis)

    def ends_in_softmax(self, module: Any) -> bool:
        """Whether the output of a layer is known to come from a softmax."""
        return features.ends_in_softmax(module)

    # -- running -------------------------------------------------------------------------------------

    def run(
        self,
        model: Any,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None,
        task: Callable[[], None] | None = None,
    ) -> None:
        """Run batches in inference mode, with gradients if a task reads them."""
        taps = [] if task is None else effects.taps_in(model)
        if task is None:
            running.run(model, batches, forward)
        elif taps:
            effects.run(model, batches, forward or running.call, taps, task)
        else:
            running.run_with_gradients(model, batches, forward or running.call, task)

    def probe(self, outputs: Any) -> Tensor:
        """Return a random combination of outputs to differentiate."""
        return effects.probe(outputs)

    def sampled_loss(self, outputs: Any, seed: int) -> Tensor | None:
        """Return a loss whose derivatives measure KL divergences; see :mod:`effects`."""
        return effects.sampled_loss(outputs, seed)

    def watch_effects(
        self, layer: LayerInfo, task: Callable[..., None], weight_only: bool = False
    ) -> list[Any]:
        """Watch every layer that owns the weight."""
        return list(effects.watch_effects(layer, task))

    def weight_effects(
        self,
        layer: LayerInfo,
        changes: Sequence[Tensor],
        inputs: Tensor,
        gradient: Tensor,
        keeps_means: bool = False,
    ) -> list[Tensor]:
        """Run the first layer that owns the weight with and without each change; no bias is corrected."""
        return effects.weight_effects(layer, changes, inputs, gradient)

    def remember(self, model: Any) -> running.Snapshot:
        """Return copies of all variables; Keras has no modes."""
        return running.Snapshot(model)

    def model_tensors(self, model: Any) -> dict[str, Any]:
        """Return the variables, numbered in the order of the model."""
        sync(model)
        return {f"{i}": to_array(variable) for i, variable in enumerate(model.variables)}

    def load_model(self, model: Any, tensors: dict[str, Any]) -> None:
        """Assign the variables again."""
        sync(model)
        for i, variable in enumerate(model.variables):
            variable.assign(tensors[f"{i}"])

    def copy_model(self, model: Any) -> Any:
        """Recreate the model from its config with the same values; fails if a compressor is attached."""
        at_work = models.compressors_of(model)
        if at_work:
            raise StageError(
                f"the model is under {type(at_work[0]).__name__} and cannot be copied with it; strip() it "
                "first, or pass a model without compressors."
            )
        return copies.copy_model(model)

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

    def narrow_to_masks(self, pruner: Any) -> None:
        """Restrict norms to the kept channels; see :mod:`narrow`."""
        from lilliput.frameworks.keras.narrow import (
            narrow_to_masks,
        )  # here: imports are to be quick

        narrow_to_masks(pruner)

    def narrow_norms_again(self, model: Any) -> None:
        """Restrict norms for the remaining pruners of a model, after one was removed."""
        sidecars = [x for x in map(instrument.sidecar_of, model._flatten_layers()) if x is not None]
        wrappers = [w for sidecar in sidecars for w in sidecar.wrappers if w.order == 0]
        for wrapper in {id(w.compressor): w for w in wrappers}.values():
            self.narrow_norms([wrapper])

    def widen_norms(self, model: Any) -> list[str]:
        """Let norms use all channels again; return those that did not."""
        from lilliput.frameworks.keras.narrow import set_narrow

        layers = layers_by_path(model)
        held = {path: instrument.sidecar_of(layer) for path, layer in layers.items()}
        narrow = [path for path, x in held.items() if x is not None and x.narrow is not None]
        for path in narrow:
            set_narrow(layers[path], None, model)
        return narrow

    def flow(self, model: Any, example_inputs: Any) -> Flow:
        """Return the flow of tensors through the model, from its graph."""
        return flow_of(model, example_inputs)

    def known_flow(self, model: Any) -> Flow | None:
        """Return the flow of a Functional or Sequential model."""
        return None if function_of(model) is None else flow_of(model)

    def flow_of_batch(self, model: Any, batch: Any, forward: Callable[..., Any] | None) -> Flow:
        """Return the flow; only a subclassed model needs the batch."""
        return flow_of(model, running.inputs_of(batch))

    def keep_quantizers(self, wrapper: ModuleWrapper, roles: Collection[str]) -> None:
        """Quantize activations at the layers that own the weight only if ``roles`` names them."""
        for owner in wrapper.layer_info.owners:
            sidecar = instrument.sidecar_of(owner.module)
            if sidecar is not None:
                sidecar.keep_quantizers(wrapper, roles)
        retrace(wrapper.compressor.bound_model)

    def add_remote_quantizer(self, model: Any, path: str, wrapper: ModuleWrapper, role: str) -> Any:
        """Quantize the output of another layer."""
        retrace(model)
        return instrument.RemoteQuantizer(wrapper, role).add_to(layers_by_path(model)[path])

    # -- batch norms ---------------------------------------------------------------------------------

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

    # -- one process -----------------------------------------------------------------------------------

    def sum_over_processes(self, tensor: Any) -> Any:
        """Return the tensor: there is a single process."""
        return tensor

    def process_index(self) -> int:
        """Return 0."""
        return 0

    def average(self, tensors: Sequence[Any]) -> bool:
        """Return False: there is a single process."""
        return False

    def reduce(self, array: Any, how: str) -> Any:
        """Return the array: there is a single process."""
        return array

    # -- tensors ---------------------------------------------------------------------------------------

    def tensor(self, value: float, wrapper: ModuleWrapper) -> Tensor:
        """Return a number as a float32 tensor."""
        return ops.convert_to_tensor(value, dtype="float32")

    def parameter(self, value: Any, at_least: float | None = None) -> Parameter:
        """Return a value that a wrapper turns into a trainable variable; see :mod:`learned`."""
        return Parameter(value, at_least)

    def value_of(self, tensor: Any) -> Any:
        """Return the value of a variable, because some Keras functions do not accept variables."""
        return tensor_of(tensor)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor, a variable or a NumPy array."""
        return isinstance(value, (keras.Variable, np.ndarray)) or bool(ops.is_tensor(value))

    def no_grad(self) -> AbstractContextManager[Any]:
        """A context in which no gradient is recorded."""
        return running.no_grad()

    def is_computed(self, value: Any) -> bool:
        """Whether a value is a tensor of the backend."""
        return bool(ops.is_tensor(value))

    def with_gradient(
        self, tensor: Tensor, result: Tensor, rule: type[QuantGrad], quant_type: QuantType
    ) -> Tensor:
        """Return the result in the precision of the tensor; see :mod:`grad`."""
        return with_gradient(tensor, ops.cast(result, tensor.dtype), rule, quant_type)

    # -- files -----------------------------------------------------------------------------------------

    def export(self, model: Any, wrappers: Sequence[Any], files: PlainFiles) -> None:
        """Write the compressed model as a plain one; see :mod:`files`."""
        export_plain(model, wrappers, files)

    def dump_tensors(self, tensors: dict[str, Any]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""
        return files.dump_tensors(tensors)

    def parse_tensors(self, data: bytes) -> dict[str, Any]:
        """Return the tensors of a safetensors file, as NumPy arrays."""
        return files.parse_tensors(data)

    def stored_types(self, model: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the weights by their paths; raise if a compressor is attached."""
        if models.compressors_of(model):
            raise StateError(
                "a compressor is attached to the model; call its strip() before loading."
            )
        found = files.plain_weights(model)
        return {name: (str(v.dtype), tuple(v.shape)) for name, v in found.items()}

    def stored(self, model: Any) -> dict[str, tuple[str, Any]]:
        """Return the weights of the plain model; see :mod:`files`."""
        sync(model)
        wrappers = [w for c in models.compressors_of(model) for w in c._every_wrapper()]
        return files.stored_weights(model, wrappers)

    def load_stored(self, model: Any, tensors: dict[str, tuple[str, Any]]) -> None:
        """Assign the weights."""
        sync(model)
        for name, variable in files.plain_weights(model).items():
            variable.assign(files.from_bits(*tensors[name]))


def _raw_weight(wrapper: ModuleWrapper) -> Any:
    return raw(wrapper.module, str(wrapper.layer_info.weight_name))


def strip(model: Any) -> Any:
    """Turn a compressed model into a plain one, and return it.

    Pruned weights are zeros; after a quantizer the weights are the trained float ones.

    Examples
    --------
    >>> import keras
    >>> from lilliput.keras import LevelPruner
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    >>> model = LevelPruner(model, [{"sparsity": 0.5}]).compress()
    >>> int(keras.ops.sum(strip(model).layers[0].kernel == 0))
    8
    """
    for compressor in reversed(models.compressors_of(model)):
        compressor.strip()
    return model


def create() -> KerasBackend:
    """Return the backend; the one name every backend module has."""
    return KerasBackend()
