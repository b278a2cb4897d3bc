"""What the tests of code written for NNI on TensorFlow share: the shim, a model, the printed blocks."""

from pathlib import Path

import keras
import numpy as np
import pytest

from lilliput.compat.nni import install, uninstall

BLOCKS = Path(__file__).parents[2] / "nni_documents" / "blocks"


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def nni(shim):
    import nni

    return nni


@pytest.fixture
def model():
    """Three convolutions and a dense layer; 8×8 images in, three numbers out."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", name="conv1"),
            layers.Conv2D(4, 3, activation="relu", name="conv2"),
            layers.Conv2D(8, 3, activation="relu", name="conv3"),
            layers.Flatten(name="flatten"),
            layers.Dense(3, name="fc"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@pytest.fixture
def one_layer():
    """A dense layer alone, six numbers in and four out."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="fc")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@pytest.fixture
def kernel():
    """Return a function that gives a layer's kernel, as the layer computes with it, as an array."""

    def kernel(model, name="fc"):
        layer = model.get_layer(name)
        return np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(layer.kernel)))

    return kernel


@pytest.fixture
def train():
    """Return a function that fits a model to noise."""

    def train(model, **options):
        random = np.random.default_rng(0)
        x = random.normal(size=(32, *model.input_shape[1:])).astype("float32")
        y = random.normal(size=(32, *model.output_shape[1:])).astype("float32")
        model.fit(x, y, batch_size=8, **{"verbose": 0} | options)

    return train


@pytest.fixture
def run():
    """Return a function that executes a printed block, and gives back the namespace it leaves."""

    def run(name, mend=None, **namespace):
        file = BLOCKS / name
        text = file.read_text(encoding="utf-8")
        for broken, whole in (mend or {}).items():
            assert broken in text, f"{name} has no {broken!r} to mend"
            text = text.replace(broken, whole)
        exec(compile(text, str(file), "exec"), namespace)
        return namespace

    return run
