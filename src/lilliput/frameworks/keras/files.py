"""Read and write tensors as safetensors, and compressed models as plain files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from lilliput.errors import ConfigError, StageError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.variables import OURS, own_variables, raw, to_array
from lilliput.frameworks.keras.wrapper import PrunerModuleWrapper, QuantizerModuleWrapper
from lilliput.frameworks.ports.files import PlainFiles, is_bias_name


def dump_tensors(tensors: Mapping[str, Any]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    from safetensors.numpy import save  # imported here to keep importing Lilliput fast

    arrays = {key: _readable(to_array(tensor)).copy(order="C") for key, tensor in tensors.items()}
    return bytes(save(arrays))


def _readable(array: Any) -> Any:
    """Widen bfloat16, which NumPy does not support."""
    return array.astype("float32") if str(array.dtype) == "bfloat16" else array


def parse_tensors(data: bytes) -> dict[str, Any]:
    """Return the tensors of a safetensors file, as NumPy arrays."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(data))
    except SafetensorError as error:
        raise StateError(f"not a safetensors file: {error}") from error


def export_plain(model: Any, wrappers: Sequence[Any], files: PlainFiles) -> None:
    """Write the compressed model as a plain one, and its masks; the model is not changed."""
    if files.onnx_path is not None:
        raise ConfigError("onnx_path: for a Keras model use lilliput.keras.export_onnx.")
    suffix = _suffix(files.model_path)
    _check_activations(wrappers)
    data = _bytes_with(model, wrappers, suffix)
    masks = {
        f"{wrapper.name}.{key}": to_array(getattr(wrapper, key))
        for wrapper in wrappers
        for key in ("weight_mask", "bias_mask")
        if isinstance(wrapper, PrunerModuleWrapper) and getattr(wrapper, key) is not None
    }
    write_atomically(Path(files.model_path), data)
    if files.mask_path is not None:
        write_atomically(Path(files.mask_path), dump_tensors(masks))


def _check_activations(wrappers: Sequence[Any]) -> None:
    for wrapper in wrappers:
        asked = set(wrapper.roles) & {"input", "output"}
        if isinstance(wrapper, QuantizerModuleWrapper) and asked:
            raise StageError(
                f"layer {wrapper.name!r}: its {min(asked)} is quantized, which a file of weights cannot "
                "store; use export_litert or export_onnx."
            )


def plain_weights(model: Any) -> dict[str, Any]:
    """Return the variables that a model's files contain, by their paths inside it."""
    own = [v for v in model.weights if not v.name.startswith(OURS)]
    found = {str(v.path).removeprefix(f"{model.name}/"): v for v in own}
    if len(found) < len(own):
        raise StateError(
            "two weights of the model have the same path, so a file cannot distinguish them; give its "
            "layers unique names."
        )
    return found


def find_biases(model: Any) -> set[str]:
    """Return which of the plain weights are biases; a GRU's has two dimensions, as has a matrix."""
    biases = {
        id(variable)
        for layer in model._flatten_layers()
        for name, variable in own_variables(layer)
        if is_bias_name(name) and (len(variable.shape) == 1 or _is_of_keras(layer))
    }
    return {name for name, variable in plain_weights(model).items() if id(variable) in biases}


def _is_of_keras(layer: Any) -> bool:
    return unshadowed(type(layer)).__module__.startswith("keras.")


def stored_weights(model: Any, wrappers: Sequence[Any]) -> dict[str, tuple[str, Any]]:
    """Return the weights of the plain model, compressed: type and bits of each."""
    _check_activations(wrappers)
    owners = [o for w in wrappers for o in w.layer_info.owners if o.weight_name is not None]
    compressed = {id(raw(o.module, o.weight_name)): o for o in owners}
    found = {}
    for name, variable in plain_weights(model).items():
        owner = compressed.get(id(variable))
        value = variable if owner is None else getattr(owner.module, owner.weight_name)
        array = np.ascontiguousarray(to_array(ops.cast(value, variable.dtype)))
        bits = array.view(f"u{array.dtype.itemsize}").reshape(tuple(variable.shape))
        found[name] = (str(variable.dtype), bits)
    return found


def from_bits(dtype: str, bits: Any) -> Any:
    """Return the value to assign to a variable of that type."""
    if dtype == "bfloat16":  # not supported by NumPy; exact in float32
        return (bits.astype("u4") << np.uint32(16)).view("float32")
    return bits.view(dtype)


def _suffix(path: str) -> str:
    for suffix in (".weights.h5", ".keras"):
        if str(path).endswith(suffix):
            return suffix
    raise ConfigError(
        f"model_path: received {path!r}, expected a name ending in .keras or .weights.h5."
    )


def _bytes_with(model: Any, wrappers: Sequence[Any], suffix: str) -> bytes:
    """Return the file of a model with its raw weights temporarily replaced by the compressed ones."""
    owners = [o for w in wrappers for o in w.layer_info.owners if o.weight_name is not None]
    changed = {id(raw(o.module, o.weight_name)): o for o in owners}
    before = [(raw(o.module, o.weight_name), o) for o in changed.values()]
    values = [(v, to_array(v), to_array(getattr(o.module, o.weight_name))) for v, o in before]
    try:
        for variable, _, compressed in values:
            variable.assign(ops.cast(compressed, variable.dtype))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"model{suffix}"
            model.save(path) if suffix == ".keras" else model.save_weights(path)
            return path.read_bytes()
    finally:
        for variable, raw_value, _ in values:
            variable.assign(raw_value)
