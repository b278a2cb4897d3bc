"""TensorFlow models that are not Keras 3 models: what to do with each kind.

Kinds are recognized by the full names of classes, so that no framework is imported.
"""

from __future__ import annotations

from typing import Any

_KERAS = "keras.src.models.model.Model"
_BUILD = "build the network with keras.Sequential or keras.Model"
_GRAPH = (
    f"a graph of TensorFlow 1 has no layers: {_BUILD}, copy trained values into it with "
    "layer.set_weights([kernel, bias]), and compress that"
)
_KERAS_2 = (
    "build the same network with Keras 3 (import keras; where TF_USE_LEGACY_KERAS is set, unset it) "
    "and copy the weights: model.set_weights(old_model.get_weights())"
)
_FUNCTION = f"a traced function has no layers: pass the keras.Model it was made from, or {_BUILD}"

# Start of the full name of a class → what it is, and how to get a Keras 3 model from it.
_KINDS = {
    "tf_keras.": ("a Keras 2 model", _KERAS_2),
    "keras.engine.": ("a Keras 2 model", _KERAS_2),
    "keras.src.engine.": ("a Keras 2 model", _KERAS_2),
    "tensorflow.python.keras.": ("a Keras 2 model", _KERAS_2),
    "tensorflow.python.framework.ops.Graph": ("a TensorFlow graph", _GRAPH),
    "tensorflow.python.framework.ops.Operation": ("an operation of a TensorFlow graph", _GRAPH),
    "tensorflow.python.framework.tensor.Tensor": ("a TensorFlow tensor", _GRAPH),
    "tensorflow.python.client.session.": ("a TensorFlow 1 session", _GRAPH),
    "tensorflow.core.framework.graph_pb2.GraphDef": ("a TensorFlow graph", _GRAPH),
    "tensorflow.core.protobuf.": ("the description of a TensorFlow graph", _GRAPH),
    "tensorflow.python.saved_model.load.": (
        "a loaded SavedModel",
        f"it has variables but no layers: load the .keras file of the same model, or {_BUILD} and "
        "copy the variables into it with layer.set_weights()",
    ),
    "tensorflow.python.types.core.Callable": ("a TensorFlow function", _FUNCTION),
    "tensorflow.python.module.module.Module": (
        "a tf.Module",
        "make it a subclass of keras.Model: layers such as keras.layers.Dense as attributes, and "
        "call() instead of __call__()",
    ),
    "keras.src.layers.layer.Layer": (
        "a Keras layer",
        "put it into a model, with or without other layers: keras.Sequential([layer])",
    ),
    "keras.src.backend.common.keras_tensor.KerasTensor": (
        "a symbolic tensor of Keras",
        "pass the model that it belongs to: keras.Model(inputs, outputs)",
    ),
}


def explain_foreign(model: Any) -> str | None:
    """Return why a TensorFlow object cannot be compressed and what to do; None for anything else.

    Examples
    --------
    >>> explain_foreign("no model at all") is None
    True
    """
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(model).__mro__]
    if _KERAS in names:
        return None
    for name in names:
        for beginning, (kind, route) in _KINDS.items():
            if name.startswith(beginning):
                received = f"received {kind} ({type(model).__name__}) as the model"
                return f"{received}; Lilliput compresses Keras 3 models: {route}."
    return None
