"""v1.1 on TensorFlow: prune gradually, epoch by epoch."""

import numpy as np
import tensorflow as tf
from nni.compression.tensorflow import AGP_Pruner

model = tf.keras.Sequential([tf.keras.Input((20,)), tf.keras.layers.Dense(10, name="fc")])
configure_list = [
    {
        "initial_sparsity": 0,
        "final_sparsity": 0.8,
        "start_epoch": 0,
        "end_epoch": 4,
        "frequency": 1,
        "op_types": ["default"],
    }
]
pruner = AGP_Pruner(configure_list)
pruner.compress(model)
zeros = []
for epoch in range(5):
    pruner.update_epoch(epoch)
    zeros.append(int(np.sum(model.get_layer("fc").kernel.numpy() == 0)))
