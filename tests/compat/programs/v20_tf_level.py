"""v2.0 on TensorFlow: a subclassed model that is built after its pruner was made."""

import numpy as np
import tensorflow as tf
from nni.algorithms.compression.tensorflow.pruning import LevelPruner


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(16, activation="relu", name="hidden")
        self.fc = tf.keras.layers.Dense(4, name="fc")

    def call(self, x):
        return self.fc(self.hidden(x))


model = Net()
configure_list = [{"sparsity": 0.75, "op_types": ["Dense"]}, {"exclude": True, "op_names": ["fc"]}]
pruner = LevelPruner(model, configure_list)
x = np.random.default_rng(0).normal(size=(8, 10)).astype("float32")
model(x)
before = model.hidden.kernel.numpy().copy()
model = pruner.compress()
pruner.export_model("pruned.weights.h5", "masks.safetensors")
output = model(x).numpy()
names = [wrapper.layer.name for wrapper in pruner.wrappers]

again = Net()
again(x)
again.load_weights("pruned.weights.h5")
