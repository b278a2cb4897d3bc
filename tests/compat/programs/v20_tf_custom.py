"""v2.0 on TensorFlow: a pruner of one's own, whose masks go by the names of variables."""

import numpy as np
import tensorflow as tf
from nni.compression.tensorflow import Pruner


class SmallPruner(Pruner):
    def __init__(self, model, config_list):
        super().__init__(model, config_list)
        self.set_wrappers_attribute("calculated", False)

    def calc_masks(self, wrapper, **kwargs):
        if wrapper.calculated:
            return None
        masks = {}
        for variable in wrapper.layer.weights:
            seen.append((wrapper.layer.name, variable.name))
            keep = tf.math.abs(variable) >= wrapper.config["threshold"]
            masks[variable.name] = tf.cast(keep, variable.dtype)
        wrapper.calculated = True
        return masks

    def validate_config(self, model, config_list):
        pass


seen = []
model = tf.keras.Sequential(
    [tf.keras.Input((6,)), tf.keras.layers.Dense(4, name="fc", bias_initializer="random_normal")]
)
fc = model.get_layer("fc")
before = [fc.kernel.numpy().copy(), fc.bias.numpy().copy()]
pruner = SmallPruner(model, [{"op_types": ["Dense"], "threshold": 0.2}])
compressed = pruner.compress()
after = [np.asarray(x) for x in (fc.kernel, fc.bias)]
masks = pruner.wrappers[0].masks
is_dense = isinstance(pruner.wrappers[0].layer, tf.keras.layers.Dense)
