"""How masks and fake quantization are applied to a module: by a shadow property and a sidecar.

The raw Parameter keeps its place and name in the module. The module's class is replaced by a cached
subclass of the same name (:mod:`shadow`), on which the attribute (``weight``) is a property that
returns the compressed weight: the Parameter itself with its zeros under a mask, a computed tensor under
a quantizer. Wrappers with their buffers are stored in a child module, the :mod:`sidecar`. Every reader of
the attribute sees the compressed weight: the module's own forward, its parent (MultiheadAttention),
``F.linear(x, layer.weight)``, torch.compile and torch.export.

Invariants
----------
- A module is shadowed if and only if it has a sidecar, unless other code changed its class in
  between (FSDP2): then the property without a sidecar returns the raw weight.
- A parameter's chain is ordered: masks first, quantizers second.
- The sidecar is looked up through ``_modules`` at each access, never captured, so that deepcopy and
  DataParallel replicas see their own masks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.shadow import shadow_class
from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar, hold_parameters
from lilliput.frameworks.torch.weights import floating, names_of, peek, unshadowed
from lilliput.frameworks.wrapping import check_rivals

_TRAINS = "_lilliput_trains"  # marks a norm that we run in eval mode
_ATTENTION = {"query": 0, "key": 1, "value": 2}


def attach(module: nn.Module, wrapper: Any, weight: str | None, bias: str | None) -> None:
    """Make a wrapper transform attributes of a module."""
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        raise UnsupportedModelError(
            f"layer {wrapper.name!r} is a {type(module).__name__} with its own weights; move them to a "
            "submodule, since containers iterate over all their children."
        )
    device = None if weight is None else peek(module, weight).device
    wrapper.to(device).train(module.training)
    sidecar: Any = module._modules.get(SIDECAR)
    if sidecar is None:
        sidecar = module._modules[SIDECAR] = Sidecar()
    check_rivals(wrapper, sidecar._modules.values())
    sidecar.add(wrapper, names_of(module, weight), names_of(module, bias))
    try:
        _update(module)
    except Exception as error:  # a metaclass may raise anything
        detach(module, wrapper)
        raise UnsupportedModelError(
            f"layer {wrapper.name!r}: its class {type(module).__name__} cannot be subclassed "
            f"({type(error).__name__}: {error})."
        ) from error


def detach(module: nn.Module, wrapper: Any) -> None:
    """Undo :func:`attach`."""
    sidecar = module._modules[SIDECAR]
    sidecar.drop(wrapper)  # type: ignore[union-attr,operator]
    _update(module)


def _update(module: nn.Module) -> None:
    """Update class, hooks and sidecar of a module to match its chains."""
    sidecar: Any = module._modules[SIDECAR]
    base: Any = unshadowed(type(module))
    names = tuple(sorted([*sidecar.chains, *(["forward"] if sidecar.narrow is not None else [])]))
    mixins = tuple(dict.fromkeys(x for w in sidecar._modules.values() if (x := w.module_mixin)))
    is_plain = not (names or mixins)
    object.__setattr__(module, "__class__", base if is_plain else shadow_class(base, names, mixins))
    hold_parameters(module)
    for key in _drop_hook(module._forward_pre_hooks, _quantize_inputs):
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    if sidecar.input_keys:
        module.register_forward_pre_hook(_quantize_inputs, with_kwargs=True)
    _drop_hook(module._forward_pre_hooks, _no_fast_path)
    if sidecar.narrow is not None:
        module.register_forward_pre_hook(_no_fast_path)
    _drop_hook(module._forward_hooks, _quantize_output)
    if sidecar.output_keys:
        module.register_forward_hook(_quantize_output, prepend=True)  # collectors see its result
    if not sidecar._modules and sidecar.narrow is None:
        del module._modules[SIDECAR]
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def keep_quantizers(module: nn.Module, wrapper: Any, roles: Collection[str]) -> None:
    """Quantize a wrapper's input and output at its own module only if ``roles`` names them."""
    sidecar: Any = module._modules[SIDECAR]
    sidecar.keep_quantizers(wrapper, roles)
    _update(module)


class RemoteQuantizer:
    """A forward hook that quantizes the output of a module for another layer."""

    def __init__(self, wrapper: Any, role: str) -> None:
        self.wrapper = wrapper
        self.role = role

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Quantize every floating-point tensor of an output."""
        return _map_floating(output, self.quantize)

    def quantize(self, tensor: Tensor) -> Tensor:
        """Quantize one tensor like the layer's own."""
        if self.role == "output":
            return self.wrapper.quantize_output(tensor)  # type: ignore[no-any-return]
        return self.wrapper.quantize_inputs((tensor,))[0]  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteQuantizer:
        return RemoteQuantizer(copy.deepcopy(self.wrapper, memo), self.role)


def quantizers_in(model: nn.Module) -> list[Any]:
    """Return the wrappers of quantizers attached to a model, but not to its copies."""
    found: dict[int, Any] = {}
    for module in model.modules():
        sidecar: Any = module._modules.get(SIDECAR)
        wrappers: list[Any] = []
        if isinstance(sidecar, Sidecar):
            wrappers += sidecar._modules.values()
        hooks = module._forward_hooks.values()
        wrappers += [hook.wrapper for hook in hooks if isinstance(hook, RemoteQuantizer)]
        found |= {id(wrapper): wrapper for wrapper in wrappers if wrapper.order == 1}
    return list(found.values())


def remove_remote_quantizers(model: nn.Module) -> None:
    """Remove the hooks that act for other layers."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, RemoteQuantizer) or hook in (
                    use_running_statistics,
                    resume_mode,
                ):
                    del hooks[key]
                    module._forward_hooks_always_called.pop(key, None)


def use_running_statistics(module: nn.Module, args: Any) -> None:
    """Make a batch norm compute as in eval mode; a forward pre hook."""
    if module.training:
        module.training, module.__dict__[_TRAINS] = False, True


def resume_mode(module: nn.Module, args: Any, output: Any) -> None:
    """Restore the mode of a batch norm; a forward hook."""
    if module.__dict__.pop(_TRAINS, False):
        module.training = True


def _map_floating(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    items = output if isinstance(output, tuple) else (output,)
    where = floating(items)
    items = tuple(function(x) if i in where else x for i, x in enumerate(items))
    if not isinstance(output, tuple):
        return items[0]
    return type(output)(*items) if hasattr(output, "_fields") else items


def set_narrow(module: nn.Module, narrow: Any) -> None:
    """Make a norm run on kept channels alone, or on all of them again (None)."""
    sidecar: Any = module._modules.get(SIDECAR)
    if sidecar is None and narrow is None:
        return
    if sidecar is None:
        sidecar = module._modules[SIDECAR] = Sidecar()
    sidecar.narrow = narrow
    _update(module)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """Do nothing; having a hook makes TransformerEncoderLayer call its norms instead of a fused kernel."""


def _quantize_inputs(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    sidecar: Any = module._modules[SIDECAR]
    named = list(kwargs)
    items = [*args, *kwargs.values()]
    where = floating(items)
    if isinstance(module, nn.MultiheadAttention):  # its masks are not activations
        places = [*range(len(args)), *(_ATTENTION.get(name, 3) for name in named)]
        where = [i for i in where if places[i] < 3]
    if isinstance(module, nn.Embedding) and not where and _is_tied(sidecar):
        return args, kwargs  # the quantized inputs are those of the head
    _expect_floating(sidecar, sidecar.input_keys, where, "input")
    # Attention has a fast path if query, key and value are one tensor, which must stay a single
    # tensor.
    tensors = tuple({id(items[i]): items[i] for i in where}.values())
    identities = [id(x) for x in tensors]
    for key in sidecar.input_keys:
        tensors = sidecar._modules[key].quantize_inputs(tensors)
    quantized = dict(zip(identities, tensors, strict=True))
    for i in where:
        items[i] = quantized[id(items[i])]
    return tuple(items[: len(args)]), dict(zip(named, items[len(args) :], strict=True))


def _is_tied(sidecar: Any) -> bool:
    """Whether other modules share the tensors that are quantized here."""
    return all(len(sidecar._modules[x].layer_info.owners) > 1 for x in sidecar.input_keys)


def _expect_floating(sidecar: Any, keys: list[str], where: list[int], what: str) -> None:
    if not where:
        name = sidecar._modules[keys[0]].name
        raise UnsupportedModelError(
            f"layer {name!r}: its {what} has no floating-point tensor that could be quantized (tensors "
            "inside lists and dicts are ignored); remove it from quant_types."
        )


def _quantize_output(module: nn.Module, args: Any, output: Any) -> Any:
    sidecar: Any = module._modules[SIDECAR]
    items = output if isinstance(output, tuple) else (output,)
    _expect_floating(sidecar, sidecar.output_keys, floating(items), "output")
    for key in sidecar.output_keys:
        output = _map_floating(output, sidecar._modules[key].quantize_output)
    return output


def _drop_hook(hooks: dict[int, Any], hook: Any) -> list[int]:
    dropped = [key for key, value in hooks.items() if value is hook]
    for key in dropped:
        del hooks[key]
    return dropped
