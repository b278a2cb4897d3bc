"""Wrappers: the state of one compressor for one layer. They own the variables, not the layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.errors import AlgorithmError, StageError
from lilliput.frameworks.keras.functions import retrace
from lilliput.frameworks.keras.grad import touch
from lilliput.frameworks.keras.learned import LearnedVariable, Parameter, needs_start
from lilliput.frameworks.keras.learning import put_slots, reconcile, slots_of
from lilliput.frameworks.keras.scopes import is_training, strategy_of, sync
from lilliput.frameworks.keras.variables import OURS, raw, read, tensor_of, to_array, track, untrack
from lilliput.frameworks.wrapping import (
    Masks,
    OwnAttributes,
    Quantizing,
    find_mask_faults,
    marker_of,
)

Tensor = Any
_numbers = count()
_SLOTS = "optimizer_slots"


class ModuleWrapper(OwnAttributes):
    """One layer of the model as a compressor sees it.

    Tensors among its attributes are variables of the layer while it is compressed, so that graphs see
    their changes: non-trainable ones, except for those that an algorithm learns.

    Attributes
    ----------
    module : keras.layers.Layer
        The layer itself, still in its place in the model.
    name, type : str
        Its path in the model and class name.
    config : dict
        The rule that selected it.
    layer_info : LayerInfo
        The same as one object.
    """

    order: ClassVar[int] = 0
    trains: ClassVar[bool] = False  # whether its variables are trained with those of the layer
    _variables: dict[str, Any]
    _starts: dict[str, tuple[Any, float | None]]  # of learned variables, with bounds

    def __init__(self, layer: LayerInfo, compressor: Any) -> None:
        self.__dict__["_variables"] = {}
        self.__dict__["_starts"] = {}
        self.__dict__["_is_attached"] = False
        self.layer_info = layer
        self.name, self.type = layer.name, layer.type
        self.config = layer.config
        self.roles: tuple[str, ...] = ()
        self.compressor = self.pruner = self.quantizer = compressor
        self._fix()

    @property
    def module(self) -> Any:
        """The layer itself."""
        return self.layer_info.module

    @property
    def training(self) -> bool:
        """Whether the current call is in training mode."""
        return is_training()

    @property
    def weight(self) -> Any:
        """The raw trainable weight; assign to it to change the layer."""
        name = self.layer_info.weight_name
        sync(self.compressor.bound_model)
        return None if name is None else read(raw(self.module, name))

    @property
    def bias(self) -> Any:
        """The raw trainable bias, or None."""
        sync(self.compressor.bound_model)
        found = ((owner.module, owner.bias_name) for owner in self.layer_info.owners)
        return next((read(raw(module, name)) for module, name in found if name), None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, compressed."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_variables", {}):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        sync(self.compressor.bound_model)
        return self._read(name)

    def __delattr__(self, name: str) -> None:
        if name in self._variables:
            self._forget(name)
        else:
            super().__delattr__(name)

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Return the value that the layer uses instead of a raw weight or bias."""
        raise NotImplementedError

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of this wrapper; a tensor becomes a variable, or updates it."""
        held = self._variables.get(name)
        if held is None and self.is_reserved(name):
            raise AlgorithmError(
                f"a wrapper's {name!r} belongs to the engine; choose another name."
            )
        is_tensor = ops.is_tensor(value) or isinstance(value, (keras.Variable, np.ndarray))
        if isinstance(value, Parameter):
            self.add_parameter(name, value)
        elif not is_tensor:
            setattr(self, name, value)
        elif held is not None:
            self.write(name, value)
        else:
            self.add_variable(name, value)

    def add_variable(self, name: str, value: Any) -> None:
        """Store a tensor as a variable, which belongs to the layer while it is compressed."""
        self._variables[name] = self._new(name, value, self.trains)

    def add_parameter(self, name: str, parameter: Parameter) -> None:
        """Store a tensor as a variable that optimizers train."""
        self._variables[name] = variable = self._new(name, parameter.value, trainable=True)
        if needs_start():
            start = self._new(f"{name}_start", np.zeros(variable.shape, _dtype_of(variable)))
            self._starts[name] = start, parameter.at_least
        else:
            variable.constraint = parameter.bound()

    def learned(self) -> dict[str, Any]:
        """Return the trained variables of this wrapper."""
        return {name: held for name, held in self._variables.items() if held.trainable}

    def put_slots(self) -> None:
        """Write stored optimizer slots, if the snapshot has any."""

    def _new(self, name: str, value: Any, trainable: bool = False) -> Any:
        array = to_array(value)
        title = f"{OURS}{next(_numbers)}_{name}"  # unique, even on one layer
        with strategy_of(self.compressor.bound_model):
            variable = keras.Variable(
                array, dtype=str(array.dtype), trainable=trainable, autocast=False, name=title
            )
        if self.__dict__["_is_attached"]:
            track(self.module, variable)
        return variable

    def _read(self, name: str) -> Any:
        held = self._variables[name]
        return LearnedVariable(held, *self._starts[name]) if name in self._starts else read(held)

    def _forget(self, name: str) -> None:
        """Remove a variable."""
        held, start = self._variables.pop(name), self._starts.pop(name, (None, None))[0]
        for variable in (held, start):
            for owner in self.layer_info.owners if variable is not None else ():
                untrack(owner.module, variable)
        if held.trainable and self.__dict__["_is_attached"]:
            reconcile(self.compressor.bound_model)

    def write(self, name: str, value: Any) -> None:
        """Overwrite a variable."""
        sync(self.compressor.bound_model)
        held = self._read(name) if name in self._starts else self._variables[name]
        held.assign(ops.cast(value, held.dtype))

    def variables(self) -> list[Any]:
        """Return the variables of this wrapper."""
        return [*self._variables.values(), *(start for start, _ in self._starts.values())]

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of this wrapper."""
        return {name: self._read(name) for name in self._variables}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of the tensors as NumPy arrays, and the plain attributes of the algorithm."""
        sync(self.compressor.bound_model)
        return {name: to_array(self._read(name)) for name in self._variables}, self.attributes()

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the current tensors and attributes."""
        held = dict(self._variables)
        values, attributes = ModuleWrapper.snapshot(self)

        def undo() -> None:
            for name in self._variables.keys() - held.keys():
                self._forget(name)
            for name, value in values.items():
                self.write(name, value)
            self.reset_attributes(attributes)

        return undo

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        for name, tensor in tensors.items():
            self.set_attribute(name, np.asarray(tensor))
        for name, value in values.items():
            setattr(self, name, value)


class LearningWrapper(ModuleWrapper):
    """A layer with learned variables.

    Its snapshot includes ``optimizer_slots`` of the learned variables, which are not
    in the files of the model.
    """

    optional_tensors: ClassVar[tuple[str, ...]] = (_SLOTS,)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of the tensors, and plain attributes with the slots of optimizers."""
        tensors, values = super().snapshot()
        model = self.compressor.bound_model
        slots = {name: slots_of(model, variable) for name, variable in self.learned().items()}
        return tensors, values | ({_SLOTS: slots} if any(slots.values()) else {})

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore a snapshot; slots as soon as an optimizer has them."""
        super().restore(tensors, {k: value for k, value in values.items() if k != _SLOTS})
        self.__dict__["_slots_to_come"] = dict(values.get(_SLOTS, {}))
        self.put_slots()

    def put_slots(self) -> None:
        """Write the slots of a snapshot to optimizers that now have their variables."""
        waiting = self.__dict__.get("_slots_to_come", {})
        for name, variable in self.learned().items():
            if name in waiting and put_slots(self.compressor.bound_model, variable, waiting[name]):
                waiting.pop(name)


class PrunerModuleWrapper(LearningWrapper):
    """A layer under a pruner: ``weight_mask`` and, if an algorithm sets it, ``bias_mask``."""

    order = 0
    optional_tensors = ("bias_mask", _SLOTS)

    def __init__(self, layer: LayerInfo, compressor: Any) -> None:
        super().__init__(layer, compressor)
        self.roles = ("weight", "bias")
        self._fix()
        self.add_variable("weight_mask", np.ones(layer.shape, _dtype_of(self.weight)))

    @property
    def bias_mask(self) -> Any:
        """The mask of the bias, or None."""
        held = self._variables.get("bias_mask")
        return None if held is None else read(held)

    def find_faults(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
        """Return the entries of a snapshot that do not fit, by name; masks contain only zeros and ones."""
        found = super().find_faults(tensors, values)
        return found | find_mask_faults(tensors, self.bias, _is_binary)

    def restore(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        masks = {key: tensors[key] for key in ("weight_mask", "bias_mask") if key in tensors}
        kept_raw = self.keeps_raw()
        self.set_masks(masks)
        super().restore({k: t for k, t in tensors.items() if k not in masks}, values)
        if self.keeps_raw() != kept_raw:  # graphs were traced with the old value
            retrace(self.compressor.bound_model)

    def set_masks(self, masks: Mapping[str, Any]) -> None:
        """Set new masks."""
        for name, mask in masks.items():
            if name not in self._variables:
                bias = self.bias
                self.add_variable(name, np.ones(tuple(bias.shape), _dtype_of(bias)))
            self.write(name, mask)

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Multiply a raw weight or bias by its mask, or let the pruner compute the weight."""
        held = self._variables.get(f"{role}_mask")
        if held is None:
            return value
        mask = tensor_of(held)
        is_computed = self.keeps_raw(role)
        masks.append((mask, is_computed))
        if is_computed:
            return self.compressor.compute_weight(self, value, mask)
        idle = list(self.learned().values()) if role == "weight" else []
        # Zero gradients, because Keras warns about variables without one.
        return touch(value * mask, idle) if idle else value * mask


class DistillerModuleWrapper(ModuleWrapper):
    """A layer that a distiller compares with its teacher's; its ``projection``, if any, is trained."""

    optional_tensors = ("projection",)
    trains = True

    def add_variable(self, name: str, value: Any) -> None:
        """Store a tensor as a variable to train; raise if the optimizer would not know it."""
        optimizer = getattr(self.compressor.bound_model, "optimizer", None)
        if optimizer is not None and optimizer.built:
            raise StageError(
                f"layer {self.name!r}: a projection to the teacher's width is to be trained, but the "
                "optimizer is built without it; call compress() first, and model.compile() with a new "
                "optimizer afterwards."
            )
        super().add_variable(name, value)

    def hold_variables(self, is_held: bool) -> None:
        """Add the variables to the layer, or remove them."""
        for variable in self.variables():
            (track if is_held else untrack)(self.module, variable)
        self.__dict__["_is_attached"] = is_held


class QuantizerModuleWrapper(Quantizing, LearningWrapper):
    """A layer under a quantizer."""

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name, self)
        self.__dict__[name] = value
        if self.__dict__.get("_is_attached") and _differs(before, value):
            # Graphs were traced with the old value, for example whether a range is known.
            retrace(self.compressor.bound_model)

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Quantize a raw weight."""
        (result,) = self._run(QuantType.WEIGHT, (value,))
        if not self.compressor.keeps_zero:
            for mask, is_dense in masks:
                result = result * mask
                if is_dense:  # adds zero, with the gradient of the pruned entries
                    result = result + (value - ops.stop_gradient(value)) * (1 - mask)
        return result

    def _run(self, quant_type: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mark = marker_of(self) if self._markings else None
        if mark is not None:
            return mark(self, quant_type, tensors)
        results: tuple[Tensor, ...] = self.compressor.run(self, quant_type, tensors)
        if not getattr(self, "is_on", True):
            # Zero gradients, because Keras warns about variables without one.
            idle = [x for name, x in self.learned().items() if name.startswith(quant_type.value)]
            results = (touch(results[0], idle), *results[1:]) if idle else results
        return results

    def _quantizer(self) -> Any:
        return self.compressor


def _differs(before: Any, after: Any) -> bool:
    try:
        return bool(before is not after and before != after)
    except (TypeError, ValueError):  # arrays
        return True


def _is_binary(mask: Any) -> bool:
    return bool(np.isin(np.asarray(mask), (0, 1)).all())


def _dtype_of(tensor: Any) -> str:
    return str(keras.backend.standardize_dtype(tensor.dtype))


WRAPPERS = {
    "compressor": ModuleWrapper,
    "pruner": PrunerModuleWrapper,
    "quantizer": QuantizerModuleWrapper,
    "distiller": DistillerModuleWrapper,
}
