"""The torch backend: find layers, wrap them, hook the optimizer, keep pruned weights at zero."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo, Owner, QuantType
from lilliput.errors import ConfigError, StageError, StateError
from lilliput.frameworks.base import Backend
from lilliput.frameworks.features import Run
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.frameworks.torch import (
    batches,
    effects,
    factor,
    features,
    files,
    instrument,
    recompute,
    statistics,
    stepping,
)
from lilliput.frameworks.torch.admit import (
    check_layer,
    check_overlaps,
    check_plain_weight,
    hold_zeros,
)
from lilliput.frameworks.torch.discover import (
    DEFAULT_TYPES,
    discover,
    find_parameters,
    parts_of,
    unwrapped,
)
from lilliput.frameworks.torch.fastpath import pass_padded
from lilliput.frameworks.torch.first_state import check_first_values
from lilliput.frameworks.torch.grad import with_gradient
from lilliput.frameworks.torch.learning import Learned
from lilliput.frameworks.torch.noise import Noise
from lilliput.frameworks.torch.replicated import GradientMean
from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar, narrow_of
from lilliput.frameworks.torch.weights import (
    forget_,
    hold_,
    is_binary,
    is_parametrized,
    is_sharded,
    raw,
    write_,
    zero_,
)
from lilliput.frameworks.torch.wrapper import (
    WRAPPERS,
    Collector,
    ModuleWrapper,
    PrunerModuleWrapper,
    QuantizerModuleWrapper,
)
from lilliput.graph.flow import Flow
from lilliput.graph.ir import Graph
from lilliput.ops.grad import QuantGrad


class TorchBackend(Backend):
    """The engine's interface, implemented for torch."""

    name = "torch"
    default_types = DEFAULT_TYPES

    def layers(self, model: nn.Module) -> list[LayerInfo]:
        """Return every layer that can be compressed; see :mod:`discover`."""
        return discover(model)

    def parts(self, model: nn.Module) -> list[tuple[str, Any]]:
        """Return the modules and parameters of a model by name."""
        return parts_of(model)

    def reshard(self, model: nn.Module) -> None:
        """Make FSDP2 release gathered copies, which a forward pass without backward leaves in the root."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None:
            for module in model.modules():
                if isinstance(module, fsdp.FSDPModule):
                    module.reshard()

    def announce_buffers(self, model: nn.Module) -> None:
        """Notify DDP, which looks for buffers only if it found some when created, and encoders."""
        pass_padded(model)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model._assign_modules_buffers()  # type: ignore[no-untyped-call]

    def is_known_type(self, name: str) -> bool:
        """Whether ``torch.nn`` has a class of that name."""
        return isinstance(getattr(nn, name, None), type)

    @torch.inference_mode(False)  # masks created in inference mode cannot be trained with
    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> ModuleWrapper:
        """Return a new wrapper; the model is not changed."""
        check_layer(layer, holds_masks=kind == "pruner")
        if kind == "pruner" and compressor.computes_weights:
            check_plain_weight(layer)
        return (compressor._wrapper_type or WRAPPERS[kind])(layer, compressor)

    def quantizers_in(self, model: nn.Module) -> list[Any]:
        """Return the wrappers of quantizers attached to a model."""
        return instrument.quantizers_in(model)

    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Raise if two weights share memory without being one parameter."""
        check_overlaps(layers)

    def attach(self, wrapper: ModuleWrapper) -> None:
        """Shadow the layer's attributes, in every module that owns them."""
        for owner in _owners(wrapper):
            instrument.attach(owner.module, wrapper, owner.weight_name, owner.bias_name)

    def detach(self, wrapper: ModuleWrapper) -> None:
        """Remove the shadow."""
        for owner in _owners(wrapper):
            instrument.detach(owner.module, wrapper)

    @torch.no_grad()
    def write_zeros(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Write the pruned zeros into the raw weights; raise if a parametrization hides them."""
        for wrapper in wrappers:
            _check_quantizers(wrapper)
        for wrapper in wrappers:
            for module, name, mask in _masks(wrapper):
                if is_parametrized(module, name):
                    hold_zeros(wrapper.name, module, name, mask)
        self.harden(wrappers)
        self.apply_masks(wrappers)

    def modules(self, model: nn.Module) -> list[LayerInfo]:
        """Return the model and every module in it; see :mod:`features`."""
        return features.list_modules(model)

    def frozen_copy(self, model: nn.Module) -> nn.Module:
        """Return a copy in eval mode without gradients."""
        return features.frozen_copy(model)

    def move_like(self, teacher: nn.Module, model: nn.Module) -> None:
        """Move a teacher to the device of a model's parameters."""
        features.move_like(teacher, model)

    def record(
        self, model: nn.Module, wrappers: Sequence[ModuleWrapper], task: Callable[[Run], None]
    ) -> list[Any]:
        """Hook the modules and the model itself."""
        return features.record(model, wrappers, task)

    def outputs_of(
        self, model: nn.Module, names: Sequence[str], run: Run, forward: Any = None
    ) -> dict[str, list[Any]]:
        """Run a model in eval mode without gradients, and restore its modes."""
        return features.outputs_of(model, names, run, forward)

    def as_arguments(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a tensor, a tuple of arguments or a dict of named ones as arguments."""
        from lilliput.frameworks.torch.capture import as_inputs

        return as_inputs(example_inputs)

    def learned(self, array: Any, like: Tensor) -> nn.Parameter:
        """Return an array as a parameter on the device of a tensor."""
        return features.learned(array, like)

    def channel_axis(self, rank: int) -> int:
        """Return 1 for images, the last axis for a sequence of tokens."""
        return 1 if rank > 3 else -1

    def are_shares(self, tensor: Tensor, axis: int) -> bool:
        """Whether values are at least 0 and add up to 1."""
        return features.are_shares(tensor, axis)

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> list[Any]:
        """Average gradients at the end of each backward; sharded ones are averaged anyway."""
        whole = [p for p in parameters if not is_sharded(p)]
        return [GradientMean(whole)] if whole and self.processes() > 1 else []

    def check_inputs(self, run: Run) -> None:
        """Raise if inputs were written to in place."""
        features.check_inputs(run)

    def check_trainable(self, tensor: Tensor, name: str) -> None:
        """Raise if a tensor was computed without gradients."""
        features.check_trainable(tensor, name)

    def on_forward(self, wrapper: ModuleWrapper, collector: Callable[..., Any]) -> list[Any]:
        """Register the collector on every module that owns the weight."""
        hook = Collector(wrapper, collector)
        modules = [owner.module for owner in _owners(wrapper)]
        return [module.register_forward_hook(hook, with_kwargs=True) for module in modules]

    def after_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Register a step post hook."""
        return optimizer.register_step_post_hook(lambda *_: task())

    def before_step(self, optimizer: Any, task: Callable[[], None]) -> Any:
        """Register a step pre hook; see :mod:`stepping`."""
        return stepping.before_step(optimizer, task)

    def parameters(self, model: nn.Module) -> dict[str, LayerInfo]:
        """Return each parameter under all its full names, as a layer that can be wrapped."""
        return find_parameters(model)

    def to_mask(self, keep: Any, wrapper: ModuleWrapper) -> Tensor:
        """Return a NumPy array of booleans as a tensor on the device of a wrapper's mask."""
        mask: Tensor = wrapper.weight_mask  # type: ignore[assignment]
        return torch.from_numpy(keep).to(mask.device)

    def to_flags(self, mask: Tensor) -> Tensor:
        """Return a mask as booleans, a copy; comparing booleans with zero makes integers of them."""
        return mask.clone() if mask.dtype == torch.bool else mask != 0

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the default process group, if there is one."""
        return statistics.sum_over_processes(tensor)

    def gradient(self, wrapper: ModuleWrapper, optimizer: Any = None) -> Any:
        """Return the full gradient of the raw weight, or None."""
        return statistics.gradient(wrapper, stepping.gradient_scale(optimizer))

    def pull_to_zero(
        self, wrappers: Sequence[ModuleWrapper], scale: float, optimizer: Any = None
    ) -> None:
        """Add the subgradient of ``scale * |w|`` to the gradients of the raw weights."""
        statistics.pull_to_zero(wrappers, scale, stepping.gradient_scale(optimizer))

    def add_penalty(
        self,
        wrapper: ModuleWrapper,
        names: Sequence[str],
        penalty: Callable[..., Any],
        optimizer: Any,
    ) -> None:
        """Add the gradients of a penalty to those of its arguments; called before each step."""
        statistics.add_penalty(wrapper, names, penalty, stepping.gradient_scale(optimizer))

    def add_noise(self, wrappers: Sequence[ModuleWrapper]) -> list[Any]:
        """Register forward hooks; see :mod:`noise`."""
        # torch.compile does not guard hooks, so it would reuse graphs traced without them.
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        return [
            wrapper.module.register_forward_hook(Noise(wrapper), with_kwargs=True)
            for wrapper in wrappers
        ]

    def show_gradients(self, wrappers: Sequence[ModuleWrapper], is_shown: bool) -> None:
        """Leave gradients of pruned weights unmasked, or mask them again."""
        for wrapper in wrappers:
            wrapper.__dict__["_shows_gradient"] = is_shown  # not part of any state
        if not is_shown:
            statistics.mask_gradients(_masked_parameters(wrappers))

    def is_recomputing(self) -> bool:
        """Whether autograd repeats this forward pass; see :mod:`recompute`."""
        return recompute.is_recomputing()

    def when_recomputing(self, like: Tensor) -> Tensor | None:
        """Return a flag for the same in compiled code."""
        return recompute.when_recomputing(like)

    def may_be_recomputed(self) -> bool:
        """Whether autograd may repeat this forward pass."""
        return recompute.may_be_recomputed()

    def is_training(self, model: nn.Module) -> bool:
        """Whether the model, inside its wrappers, is in training mode."""
        return unwrapped(model).training

    def run(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None,
        task: Callable[[], None] | None = None,
    ) -> None:
        """Run batches in eval mode, with gradients if a task reads them."""
        statistics.run(model, batches, forward, task)

    def on_gradient(self, tensor: Tensor, task: Callable[[Tensor], None]) -> None:
        """Register a tensor hook."""
        statistics.on_gradient(tensor, task)

    def probe(self, outputs: Any) -> Tensor:
        """Return a random combination of outputs to differentiate."""
        return statistics.probe(outputs)

    def sampled_loss(self, outputs: Any, seed: int) -> Tensor | None:
        """Return a loss whose derivatives measure KL divergences; see :mod:`effects`."""
        return effects.sampled_loss(outputs, seed)

    def watch_effects(
        self, layer: LayerInfo, task: Callable[..., None], weight_only: bool = False
    ) -> list[Any]:
        """Watch every module that owns the weight."""
        is_shared = len(layer.owners) > 1
        return [
            x
            for owner in layer.owners
            for x in effects.watch_effects(owner.module, task, is_shared, weight_only)
        ]

    def weight_effects(
        self,
        layer: LayerInfo,
        changes: Sequence[Tensor],
        inputs: Tensor,
        gradient: Tensor,
        keeps_means: bool = False,
    ) -> list[Tensor]:
        """Run a module that owns the weight, which is linear, with the changes alone.

        If an embedding and a linear layer share it, the one that accepts such inputs.
        """
        takes = (x for x in layer.owners if _reads_tokens(x.module) != inputs.is_floating_point())
        owner = next(takes, layer.owners[0])
        name = owner.weight_name or ""
        return effects.weight_effects(owner.module, name, changes, inputs, gradient, keeps_means)

    def feeder(self, example_inputs: Any) -> Callable[..., Any]:
        """Return a function that calls a model with a batch; see :mod:`batches`."""
        return batches.feeder(example_inputs)

    def remember(self, model: nn.Module) -> statistics.Snapshot:
        """Return copies of all parameters and buffers, and the modes of all modules."""
        return statistics.Snapshot(model)

    def copy_model(self, model: nn.Module) -> nn.Module:
        """Return a deep copy."""
        from lilliput.frameworks.torch.capture import whole_copy

        return whole_copy(model)

    def model_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the tensors of the state dict."""
        return {key: t for key, t in model.state_dict().items() if isinstance(t, Tensor)}

    def load_model(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Load them; other entries of the state dict are kept."""
        model.load_state_dict({**model.state_dict(), **tensors})

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
        held = _held_by(optimizer)
        weights = [
            raw(w.module, name)
            for w in wrappers
            if (name := w.layer_info.weight_name) and not is_parametrized(w.module, name)
        ]
        own = [p for wrapper in wrappers for p in wrapper.parameters()]
        if weights and not any(id(p) in held for p in [*weights, *own]):
            raise ConfigError(
                "optimizer: it contains none of the weights to compress; was it created for another model, "
                "or before the model was moved or wrapped? Create it from this model's parameters()."
            )

    def check_mask(self, wrapper: ModuleWrapper, key: str, mask: Any) -> str | None:
        """Return the problem of a mask, or None."""
        is_weight = key == "weight_mask"
        bias = None if is_weight else wrapper.bias
        if not is_weight and bias is None:
            return "the layer has no bias."
        expected = wrapper.layer_info.shape if bias is None else tuple(bias.shape)
        if not isinstance(mask, Tensor):
            return f"received {type(mask).__name__}, expected a tensor of ones and zeros."
        if tuple(mask.shape) != expected:
            return f"received shape {tuple(mask.shape)}, expected {expected}."
        if not is_binary(mask):
            return "received values other than 0 and 1."
        return None

    def check_regrowth(self, optimizer: Any, wrappers: Sequence[ModuleWrapper]) -> None:
        """Raise if it is unknown what the optimizer remembers of a weight that is new to it."""
        held = _held_by(optimizer)
        for parameter, _ in _masked_parameters(wrappers):
            if id(parameter) in held:
                check_first_values(optimizer, parameter)

    @torch.no_grad()
    def apply_masks(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Set pruned weights to zero and reset their optimizer state, in place."""
        for parameter, mask in _masked_parameters(wrappers):
            zero_(parameter, mask)
            if optimizer is not None:
                forget_(optimizer, parameter, mask)

    @torch.no_grad()
    def harden(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Write the computed weights of soft layers into their Parameters."""
        soft = [wrapper for wrapper in wrappers if wrapper.keeps_raw()]
        for wrapper in soft:
            parameter = raw(wrapper.module, str(wrapper.layer_info.weight_name))
            write_(parameter, wrapper.transform("weight", wrapper.weight, []))
            wrapper.set_attribute("is_soft", False)
        self.apply_masks(soft, optimizer)

    def tensor(self, value: float, wrapper: ModuleWrapper) -> Tensor:
        """Return a number as a tensor on the device of a wrapper's layer."""
        near = next(wrapper.module.parameters(), None)
        device = None if near is None else near.device
        return torch.tensor(value, dtype=torch.float32, device=device)

    def parameter(self, value: Tensor, at_least: float | None = None) -> nn.Parameter:
        """Return a tensor as a trainable parameter; the algorithm has to enforce its bound."""
        return nn.Parameter(value.detach().clone())

    @torch.no_grad()
    def masked_weight(self, wrapper: ModuleWrapper) -> Tensor:
        """Return the raw weight with all pruners applied."""
        sidecar: Any = wrapper.module._modules.get(SIDECAR)
        weight: Tensor = wrapper.weight.detach()
        return (
            weight
            if sidecar is None
            else sidecar.pruned(str(wrapper.layer_info.weight_name), weight)
        )

    def graph(self, model: nn.Module, example_inputs: Any) -> Graph:
        """Record one run of a copy of the model, without values."""
        from lilliput.frameworks.torch.capture import forget_values, plain_copy
        from lilliput.frameworks.torch.graph import graph_of

        graph = graph_of(plain_copy(model, share=True), example_inputs)
        forget_values(graph.source)
        return graph

    def needs_example(self, model: nn.Module) -> bool:
        """Return True: only a run shows what a module does."""
        return True

    def flow(self, model: nn.Module, example_inputs: Any) -> Flow:
        """Run the model once in eval mode; see :mod:`flow`."""
        from lilliput.frameworks.torch.capture import as_inputs
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
        """Run the first rows of a batch in eval mode, or all of it if the model requires that."""
        from lilliput.frameworks.torch.flow import record_flow, shorten

        call = forward or batches.call
        try:
            return record_flow(unwrapped(model), lambda: call(model, shorten(batch)))
        except Exception:
            return record_flow(unwrapped(model), lambda: call(model, batch))

    def keep_quantizers(self, wrapper: ModuleWrapper, roles: Collection[str]) -> None:
        """Switch the hooks on the modules that own the weight."""
        for owner in _owners(wrapper):
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
        from lilliput.frameworks.torch.ptq import Refinement  # imported here: keeps imports fast

        model = quantizer.bound_model
        return Refinement(
            quantizer, batches, forward, lambda: self.flow_of_batch(model, batches[0], forward)
        )

    def watch_join(self, model: nn.Module) -> list[Any]:
        """Record which DistributedDataParallel runs the model; see :mod:`joining`."""
        from lilliput.frameworks.torch.joining import watch_join  # here: imports are to be quick

        return watch_join(model)

    def is_joining(self, model: nn.Module) -> bool:
        """Whether the model runs inside ``DistributedDataParallel.join()``."""
        if self.processes() == 1:
            return False
        from lilliput.frameworks.torch.joining import joining

        return joining(model) is not None

    def processes(self) -> int:
        """Return the size of the default process group."""
        distributed = torch.distributed
        is_one = not (distributed.is_available() and distributed.is_initialized())
        return 1 if is_one else distributed.get_world_size()

    def process_index(self) -> int:
        """Return the rank in the default process group."""
        distributed = torch.distributed
        is_one = not (distributed.is_available() and distributed.is_initialized())
        return 0 if is_one else distributed.get_rank()

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> bool:
        """Average tensors in place over the default process group; False if there is none."""
        return statistics.average(tensors)

    def reduce(self, array: Any, how: str) -> Any:
        """Reduce over the default process group, if there is one."""
        return statistics.reduce(array, how)

    def is_computed(self, value: Any) -> bool:
        """Whether a value is a torch tensor."""
        return isinstance(value, Tensor)

    def with_gradient(
        self, tensor: Tensor, result: Tensor, rule: type[QuantGrad], quant_type: QuantType
    ) -> Tensor:
        """Return the result of an autograd function; see :mod:`grad`."""
        return with_gradient(tensor, result, rule, quant_type)

    @torch.no_grad()
    def hold_masks(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Set pruned weights back to zero after an optimizer step has moved them, in place."""
        hold_(list(_masked_parameters(wrappers)))

    def narrow_to_masks(self, pruner: Any) -> None:
        """Restrict norms to the kept channels; see :mod:`norms`."""
        from lilliput.frameworks.torch.norms import narrow_to_masks  # here: imports are to be quick

        narrow_to_masks(pruner)

    def narrow_norms_again(self, model: nn.Module) -> None:
        """Restrict norms for the remaining pruners of a model, after one was removed."""
        left = {id(m.compressor): m for m in model.modules() if isinstance(m, PrunerModuleWrapper)}
        for wrapper in left.values():
            self.narrow_norms([wrapper])

    def widen_norms(self, model: nn.Module) -> list[str]:
        """Let norms use all channels again; return those that did not."""
        narrow = [x for x in model.named_modules() if narrow_of(x[1]) is not None]
        for _, module in narrow:
            instrument.set_narrow(module, None)
        return [name for name, _ in narrow]

    def factoring(self) -> Any:
        """Return the module that replaces one layer by two, :mod:`factor`."""
        return factor

    def from_array(self, array: Any) -> Tensor:
        """Return a NumPy array as a tensor that shares its memory."""
        return torch.from_numpy(array)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a torch tensor."""
        return isinstance(value, Tensor)

    def no_grad(self) -> AbstractContextManager[Any]:
        """A context in which no gradient is recorded."""
        return torch.no_grad()

    def export(self, model: nn.Module, wrappers: Sequence[Any], files: PlainFiles) -> None:
        """Write the compressed model as a plain one; see :mod:`export`."""
        from lilliput.frameworks.torch.export.plain import (
            export_plain,  # here: imports are to be quick
        )

        export_plain(model, wrappers, files)

    def dump_tensors(self, tensors: dict[str, Tensor]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""
        return files.dump_tensors(tensors)

    def parse_tensors(self, data: bytes) -> dict[str, Tensor]:
        """Return the tensors of a safetensors file."""
        return files.parse_tensors(data)

    def stored_types(self, model: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the tensors of the state dict; raise if a compressor is attached."""
        if any(isinstance(module, Sidecar) for module in model.modules()):
            raise StateError(
                "a compressor is attached to the model; call its strip() before loading."
            )
        state = self.model_tensors(unwrapped(model))
        files.check_storable(state)
        return {name: (files.type_of(t), tuple(t.shape)) for name, t in state.items()}

    def stored(self, model: nn.Module) -> dict[str, tuple[str, Any]]:
        """Return the state dict of the plain model; see :mod:`export`."""
        from lilliput.frameworks.torch.export.plain import check_norms, compressed_state_dict

        files.check_storable(self.model_tensors(unwrapped(model)))
        check_norms(unwrapped(model))
        state = compressed_state_dict(unwrapped(model))
        return {name: files.to_bits(tensor) for name, tensor in state.items()}

    def load_stored(self, model: nn.Module, tensors: dict[str, tuple[str, Any]]) -> None:
        """Load them as a state dict."""
        state = {name: files.from_bits(*tensor) for name, tensor in tensors.items()}
        files.check_tied(self.model_tensors(unwrapped(model)), state)
        self.load_model(unwrapped(model), state)


def _owners(wrapper: ModuleWrapper) -> list[Owner]:
    """Return the modules that own a layer's weight, each once, whatever its names."""
    return list({id(owner.module): owner for owner in wrapper.layer_info.owners[::-1]}.values())[
        ::-1
    ]


def _masks(wrapper: ModuleWrapper) -> list[tuple[nn.Module, str, Tensor]]:
    """Return the active masks, each with the module and the name of the parameter it covers.

    Excluded are weights that a pruner computes, whose Parameters contain no zeros.
    A shared weight is one parameter; its owners may have different biases.
    """
    weight_mask, bias_mask = (wrapper._buffers.get(k) for k in ("weight_mask", "bias_mask"))
    found, owners = [], wrapper.layer_info.owners
    if wrapper.keeps_raw():
        weight_mask = None
    if weight_mask is not None and owners[0].weight_name is not None:
        found.append((owners[0].module, owners[0].weight_name, weight_mask))
    if bias_mask is not None:
        found += [(o.module, o.bias_name, bias_mask) for o in owners if o.bias_name is not None]
    return found


def _masked_parameters(wrappers: Sequence[ModuleWrapper]) -> Iterator[tuple[Any, Tensor]]:
    """Yield each raw parameter that can store its zeros itself, with its mask."""
    for wrapper in wrappers:
        for module, name, mask in _masks(wrapper):
            if not is_parametrized(module, name):
                yield raw(module, name), mask


def _reads_tokens(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))


def _held_by(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _check_quantizers(wrapper: ModuleWrapper) -> None:
    """Raise if a mask is removed while a quantizer that would change its zeros is attached."""
    if not isinstance(wrapper, PrunerModuleWrapper):
        return
    for owner in wrapper.layer_info.owners:
        for other in owner.module._modules[SIDECAR]._modules.values():
            if isinstance(other, QuantizerModuleWrapper) and "weight" in other.roles:
                quantizer = other.compressor
                if quantizer is None or not quantizer.keeps_zero:
                    raise StageError(
                        f"layer {wrapper.name!r} is also under {type(quantizer).__name__}, which does "
                        "not keep pruned zeros at zero by itself; strip() the quantizer first."
                    )


def strip(model: nn.Module) -> nn.Module:
    """Turn a compressed model, or a copy of one, into a plain one, and return it.

    For copies that no compressor knows, such as a teacher made by ``copy.deepcopy``. Pruned
    weights are zeros; after a quantizer the weights are the trained float ones.

    Examples
    --------
    >>> import copy, torch
    >>> from lilliput.torch import LevelPruner
    >>> model = LevelPruner(torch.nn.Linear(4, 4), [{"sparsity": 0.5}]).compress()
    >>> teacher = strip(copy.deepcopy(model))
    >>> type(teacher) is torch.nn.Linear, int((teacher.weight == 0).sum())
    (True, 8)
    """
    backend = TorchBackend()
    backend.widen_norms(model)
    instrument.remove_remote_quantizers(model)
    wrappers = [module for module in model.modules() if isinstance(module, ModuleWrapper)]
    for wrapper in wrappers:
        if isinstance(wrapper, QuantizerModuleWrapper):  # before the masks that it may rely on
            backend.detach(wrapper)
    others = [w for w in wrappers if not isinstance(w, QuantizerModuleWrapper)]
    backend.write_zeros(others)
    for wrapper in others:
        backend.detach(wrapper)
    pass_padded(model)
    return model


def create() -> TorchBackend:
    """Return the backend; the one name every backend module has."""
    return TorchBackend()
