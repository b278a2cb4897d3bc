"""v2.10 on TensorFlow: the batch-norm scales that are smallest in the whole model."""

import numpy as np
import tensorflow as tf
from nni.algorithms.compression.tensorflow.pruning import SlimPruner

layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3),
        layers.BatchNormalization(name="bn1", gamma_initializer="random_uniform"),
        layers.Conv2D(6, 3),
        layers.BatchNormalization(name="bn2", gamma_initializer="random_uniform"),
        layers.Flatten(),
        layers.Dense(3),
    ]
)
norms = [model.get_layer(name) for name in ("bn1", "bn2")]
before = np.concatenate([norm.gamma.numpy() for norm in norms])
pruner = SlimPruner(model, [{"sparsity": 0.5, "op_types": ["BatchNormalization"]}])
model = pruner.compress()
after = np.concatenate([np.asarray(norm.gamma) for norm in norms])
masks = [wrapper.masks for wrapper in pruner.wrappers]
filters = [np.asarray(layer.kernel) for layer in model.layers if isinstance(layer, layers.Conv2D)]
