"""Look at models of Keras from outside: what they compute, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from lilliput.backends.keras.variables import raw, to_array
from lilliput.core.compressor import Compressor
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.keras.models import make_input, specimen_of
from lilliput.testing.parts import Same, expect_same_parts

Array = Any


def outputs(model: Any, training: bool = False, inputs: Array = None) -> Array:
    """Return what a model computes when it is called, of its own test batch by default."""
    inputs = make_input(model) if inputs is None else inputs
    return to_array(model(inputs, training=training))


def predictions(model: Any) -> Array:
    """Return what a model predicts by its compiled function."""
    return to_array(model.predict_on_batch(make_input(model)))


def dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's dtype, the same on every backend."""
    return str(keras.backend.standardize_dtype(tensor.dtype))


@dataclass(frozen=True)
class Entry:
    """One weight or bias of a compressed model, as each of its owners sees it; arrays are copies."""

    label: str
    variable: Any
    raw: Array
    seen: Array
    mask: Array | None
    axis: int  # which counts the output channels

    @property
    def pruned(self) -> Array:
        """Where the weight is zero because a mask says so, and not by chance as in a new bias."""
        is_zero = self.seen == 0
        return is_zero if self.mask is None else is_zero & (self.mask == 0)


def entries(
    compressor: Compressor, with_bias: bool = False, with_companions: bool = True
) -> Iterator[Entry]:
    """Yield the compressed weights of a model, once per owner."""
    companions = compressor.companions() if with_companions else []
    for wrapper in (*compressor.get_modules_wrapper(), *companions):
        info, tensors = wrapper.layer_info, wrapper.tensors()
        for owner in info.owners:
            names = [(owner.weight_name, "weight"), (owner.bias_name, "bias")]
            for name, role in names if with_bias else names[:1]:
                if name is not None and role in wrapper.roles:
                    variable, mask = raw(owner.module, name), tensors.get(f"{role}_mask")
                    yield Entry(
                        f"{owner.path}.{name}",
                        variable,
                        to_array(variable),
                        to_array(getattr(owner.module, name)),
                        None if mask is None else to_array(mask),
                        info.out_axis,
                    )


def tensors_of(compressor: Compressor) -> dict[str, Array]:
    """Return copies of all tensors that the wrappers keep: masks, scales and the like."""
    return {
        f"{wrapper.name}.{key}": to_array(value)
        for wrapper in compressor._every_wrapper()
        for key, value in wrapper.tensors().items()
    }


def expect_same_tensors(actual: Compressor, expected: Compressor, when: str) -> None:
    """Expect two compressors to hold the same masks and scales."""
    received, wanted = tensors_of(actual), tensors_of(expected)
    differing = sorted(received.keys() ^ wanted.keys())
    expect(not differing, f"{when}, only one of two compressors holds {differing}.")
    for key, value in wanted.items():
        expect_equal(received[key], value, f"{when}, {key} of two compressors")


def expect_finite(array: Array, what: str) -> None:
    """Expect numbers, and neither infinity nor NaN."""
    expect(bool(keras.ops.all(keras.ops.isfinite(array))), f"{what} are not finite.")


def quantizes_activations(compressor: Compressor) -> bool:
    """Whether layers change their inputs or outputs, so that no plain model equals this one."""
    roles = {role for w in compressor.get_modules_wrapper() for role in w.roles}
    return not roles.isdisjoint({"input", "output"})


class Anatomy:
    """What a model that is still plain is made of, for comparison later on.

    Parameters
    ----------
    model : keras.Model
        The model; its weights are copied, the rest is remembered by identity.
    optimizer : keras.optimizers.Optimizer, optional
        Its class, attributes and variables count too.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        self.weights = list(model.weights)
        self.values = [to_array(weight) for weight in self.weights]
        self.optimizer = optimizer
        self.parts = _parts(model, optimizer)

    def expect_same(self, model: Any, when: str, values: bool = True) -> None:
        """Expect the model to be made of the very same parts, and to hold the same values."""
        expect_same_parts(_parts(model, self.optimizer), self.parts, when)
        if values:
            for weight, value in zip(self.weights, self.values, strict=True):
                expect_equal(to_array(weight), value, f"{when}, {weight.path}")

    def twin(self, model: Any, compressor: Compressor) -> Any:
        """Return a plain model with the weights that the compressed layers claim to compute with."""
        seen = {id(entry.variable): entry.seen for entry in entries(compressor, with_bias=True)}
        twin = specimen_of(model)()
        twin.set_weights([seen.get(id(weight), to_array(weight)) for weight in self.weights])
        return twin

    def expect_like_twin(self, model: Any, compressor: Compressor, when: str) -> None:
        """Expect the model to compute what a plain one computes with the weights its layers show."""
        if not quantizes_activations(compressor):
            what = (
                f"{when}, outputs of {model.name} against a plain model with the compressed weights"
            )
            twin = self.twin(model, compressor)
            expect_close(outputs(model), outputs(twin), what)
            expect_close(outputs(model, True), outputs(twin, True), f"{what}, in training")


# What Keras knows about a layer's call; a model under compression is told more than others.
_CALL = ("_call_has_training_arg", "_call_has_context_arg", "_call_context_args", "_call_signature")


def _parts(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return named facts about a model that compare equal only if nothing was touched."""
    parts: dict[str, Any] = {"the weights": [Same(weight) for weight in model.weights]}
    parts["the number of weights"] = len(model.get_weights())
    if keras.backend.backend() == "torch":
        parts["the state-dict keys"] = list(model.state_dict())
        parts["the parameters"] = [Same(parameter) for parameter in model.parameters()]
    for number, layer in enumerate(model._flatten_layers()):
        label = f"layer {number} {layer.name!r}"
        parts[label] = Same(layer)
        parts[f"the class of {label}"] = type(layer)
        parts[f"the attributes of {label}"] = sorted(vars(layer))
        parts[f"the lock of {label}"] = layer._tracker.locked
        for kind in ("_trainable_variables", "_non_trainable_variables"):
            parts[f"{kind} of {label}"] = [Same(x) for x in getattr(layer, kind)]
        for name in _CALL:
            parts[f"{name} of {label}"] = getattr(layer, name, None)
    if optimizer is not None:
        parts["the class of the optimizer"] = type(optimizer)
        parts["the attributes of the optimizer"] = sorted(vars(optimizer))
        parts["the variables of the optimizer"] = [Same(x) for x in optimizer.variables]
    return parts
