"""Masks on the variables of layers and the slots of optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from lilliput.errors import StageError
from lilliput.frameworks.keras.learning import parts_of
from lilliput.frameworks.keras.ops import assign
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.sidecar import sidecar_of
from lilliput.frameworks.keras.variables import raw, to_array
from lilliput.frameworks.keras.wrapper import PrunerModuleWrapper, QuantizerModuleWrapper


def apply_masks(wrappers: Sequence[Any], optimizer: Any = None) -> None:
    """Set masked entries to zero, in the raw variables and in the optimizers' slots."""
    if not wrappers:
        return
    model = wrappers[0].compressor.bound_model
    sync(model)
    optimizers = {id(x): x for x in (optimizer, getattr(model, "optimizer", None)) if x is not None}
    for variable, mask in _masked(wrappers):
        if mask.all():
            continue
        held = [variable, *(slot for x in optimizers.values() for slot in _slots(x, variable))]
        for target in held:
            target.assign(target * ops.cast(mask, target.dtype))


def _masked(wrappers: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each raw variable with its mask, except those whose weights a pruner computes."""
    for wrapper in wrappers:
        for role in ("weight", "bias"):
            mask = None if wrapper.keeps_raw(role) else getattr(wrapper, f"{role}_mask", None)
            if mask is not None:
                for owner in wrapper.layer_info.owners:
                    name = owner.weight_name if role == "weight" else owner.bias_name
                    if name is not None:
                        yield raw(owner.module, name), to_array(mask)


def _slots(optimizer: Any, variable: Any) -> Iterator[Any]:
    """Yield the optimizer slots of a variable, except those that it divides by."""
    for inner in parts_of(optimizer):
        trained = getattr(inner, "_trainable_variables", None) or []
        index = next((i for i, held in enumerate(trained) if held is variable), None)
        if index is None:
            continue
        for slots in vars(inner).values():
            is_listed = isinstance(slots, list) and len(slots) == len(trained)
            slot = slots[index] if is_listed and slots is not trained else variable
            is_other = slot is not variable and _is_memory(slot) and _is_alive(slot)
            if is_other and slot.shape == variable.shape:
                yield slot


def _is_memory(slot: Any) -> bool:
    """Whether a slot holds a direction of movement; sums of squares only scale the steps."""
    path = getattr(slot, "path", "accumulator")
    return "accumulator" not in path or "gradient_accumulator" in path


def _is_alive(slot: Any) -> bool:
    """Whether a slot has a value: on JAX, Keras donates the buffers of averages without updating them."""
    is_deleted = getattr(getattr(slot, "value", None), "is_deleted", None)
    return is_deleted is None or not is_deleted()


def moves_zeros(optimizer: Any) -> bool:
    """Whether an optimizer moves weights without a gradient or momentum."""
    return any(type(part).__name__ == "Muon" for part in parts_of(optimizer))


def restart(model: Any, optimizer: Any) -> None:
    """Reset an optimizer to the values of a new one, and its averages to the weights.

    Its steps count from 0, because Adam corrects the bias of its averages by the number of steps.
    """
    sync(model)
    for part in [] if optimizer is None else parts_of(optimizer):
        trained = list(getattr(part, "_trainable_variables", None) or [])
        if not trained or hasattr(part, "inner_optimizer"):
            continue
        fresh = type(part).from_config(part.get_config())
        fresh.build(trained)
        rate = getattr(part, "_learning_rate", None)
        for held, new in zip(part.variables, fresh.variables, strict=False):
            if held is not rate and _is_alive(held) and held.shape == new.shape:
                held.assign(new)
        averages = getattr(part, "_model_variables_moving_average", ()) if part.use_ema else ()
        for variable, average in zip(trained, averages, strict=False):
            if average is not None and _is_alive(average):
                assign(average, variable)


def fault_of(wrapper: Any, key: str, mask: Any) -> str | None:
    """Return the problem of a mask, or None."""
    bias = None if key == "weight_mask" else wrapper.bias
    if key != "weight_mask" and bias is None:
        return "the layer has no bias."
    expected = wrapper.layer_info.shape if bias is None else tuple(bias.shape)
    if not (isinstance(mask, np.ndarray) or ops.is_tensor(mask)):
        return f"received {type(mask).__name__}, expected a tensor of ones and zeros."
    if tuple(mask.shape) != expected:
        return f"received shape {tuple(mask.shape)}, expected {expected}."
    if not np.isin(to_array(mask), (0, 1)).all():
        return "received values other than 0 and 1."
    return None


def check_quantizers(wrappers: Sequence[Any]) -> None:
    """Raise if a mask is removed while a quantizer that would change its zeros is attached."""
    for wrapper in wrappers:
        if not isinstance(wrapper, PrunerModuleWrapper):
            continue
        for owner in wrapper.layer_info.owners:
            sidecar = sidecar_of(owner.module)
            for other in sidecar.wrappers if sidecar is not None else ():
                is_moved = isinstance(other, QuantizerModuleWrapper) and "weight" in other.roles
                if is_moved and not other.compressor.keeps_zero:
                    raise StageError(
                        f"layer {wrapper.name!r} is also under {type(other.compressor).__name__}, which "
                        "does not keep pruned zeros at zero by itself; strip() the quantizer first."
                    )
