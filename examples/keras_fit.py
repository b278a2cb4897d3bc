"""Keras with ``model.fit``: train, prune, quantize, and run the LiteRT file on integers.

    pip install 'lilliput[litert]' scikit-learn
    python examples/keras_fit.py

The data are the handwritten digits that come with scikit-learn.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

from lilliput.keras import AGPPruner, QATQuantizer, export_litert, open_file


def load_data():
    """Return training and test images of 8×8 pixels, and their labels."""
    digits = load_digits()
    images = (digits.images / 16)[..., None].astype("float32")
    return (images[:1347], digits.target[:1347]), (images[1347:], digits.target[1347:])


def make_model():
    """Return a CNN with a batch norm."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(32, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(64, 3, strides=2, padding="same", activation="relu", name="conv2")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, name="head")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"])
    return model


def accuracy_of_file(path, images, labels):
    """Return the accuracy of the LiteRT interpreter."""
    return float(np.mean(open_file(path)(images).argmax(1) == labels))


def main():
    """Train, prune, quantize, export, execute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="of each stage")
    parser.add_argument("--output", type=Path, default=Path("digits_int8.tflite"))
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    (images, labels), test = load_data()
    model = make_model()
    fit = {"x": images, "y": labels, "batch_size": 64, "verbose": 0}
    model.fit(**fit, epochs=options.epochs)
    print(f"float            {model.evaluate(*test, verbose=0)[1]:.2%}")

    end = max(options.epochs * 2 // 3, 1)
    rules = [{"op_types": ["Conv2D", "Dense"], "final_sparsity": 0.8, "end_epoch": end}]
    pruner = AGPPruner(model, rules)
    pruner.compress()
    model.fit(**fit, epochs=options.epochs, callbacks=[pruner.callback()])
    print(f"80 % pruned      {model.evaluate(*test, verbose=0)[1]:.2%}")

    quantizer = QATQuantizer(model, [{"op_types": ["Conv2D", "Dense"]}], model.optimizer)
    quantizer.compress()  # in addition to the masks, which stay on
    model.fit(**fit, epochs=max(options.epochs // 3, 1))
    print(f"int8, simulated  {model.evaluate(*test, verbose=0)[1]:.2%}")

    result = export_litert(quantizer, options.output, images[:16])
    print(result)
    print(f"int8, executed   {accuracy_of_file(options.output, *test):.2%}")
    print(result.receipt)


if __name__ == "__main__":
    main()
