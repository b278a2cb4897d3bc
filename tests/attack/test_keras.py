"""Model shapes × compressors × ways to train, on Keras: right, or refused in our own words."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from keras import layers, ops  # noqa: E402

from lilliput.errors import LilliputError  # noqa: E402
from lilliput.keras import (  # noqa: E402
    AGPPruner,
    BNNQuantizer,
    DoReFaQuantizer,
    L1NormPruner,
    LevelPruner,
    NaiveQuantizer,
    PTQQuantizer,
    QATQuantizer,
)

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)


def mlp():
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu", name="a"), layers.Dense(3, name="b")]
    )


def conv():
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(8, 3, padding="same")(x) + x
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def separable():
    x = inputs = keras.Input((8, 8, 4))
    x = layers.SeparableConv2D(6, 3)(layers.DepthwiseConv2D(3)(x))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def recurrent():
    x = inputs = keras.Input((5, 4))
    x = layers.GRU(4)(layers.LSTM(6, return_sequences=True)(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def attention():
    x = inputs = keras.Input((5, 8))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(inputs, layers.Dense(3)(ops.mean(x, axis=1)))


def embedding():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Conv1D(6, 3, activation="relu")(layers.Embedding(10, 8)(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalMaxPooling1D()(x)))


def shared():
    x = inputs = keras.Input((6,))
    dense = layers.Dense(6, "tanh")
    return keras.Model(inputs, layers.Dense(3)(dense(dense(x))))


def nested():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu")], name="inner")
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(3)(inner(inputs)))


@keras.saving.register_keras_serializable("attack")
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.one = layers.Dense(8, "relu", name="one")
        self.two = layers.Dense(3, name="two")

    def call(self, x):
        return self.two(self.one(x))


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 6), "float32"))
    return model


def several():
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    x = layers.Concatenate()([layers.Dense(5, "relu")(a), layers.Dense(5, "relu")(b)])
    return keras.Model([a, b], layers.Dense(3)(x))


SHAPES = (
    *(mlp, conv, separable, recurrent, attention),
    *(embedding, shared, nested, subclassed, several),
)
COMPRESSORS = {
    "level": lambda m, o: LevelPruner(m, [{"sparsity": 0.5}], o),
    "agp": lambda m, o: AGPPruner(m, [{"final_sparsity": 0.5, "end_epoch": 1}], o),
    "l1norm": lambda m, o: L1NormPruner(m, [{"sparsity": 0.5}], o),
    "n:m": lambda m, o: LevelPruner(m, [{"granularity": "1:2"}], o),
    "naive": lambda m, o: NaiveQuantizer(m, [{"quant_bits": 8}], o),
    "dorefa": lambda m, o: DoReFaQuantizer(m, [{"quant_types": ["weight"], "quant_bits": 8}], o),
    "bnn": lambda m, o: BNNQuantizer(m, [{"quant_types": ["weight"], "quant_bits": 1}], o),
    "qat": lambda m, o: QATQuantizer(m, [{"quant_bits": 8}], o),
    "ptq": lambda m, o: PTQQuantizer(m, [{"quant_bits": 8}], o),
}
PRUNERS = ("level", "agp", "l1norm", "n:m")
# What a graph, eager code and a loaded copy may differ by, relative to the largest output: float32 sums in
# another order. Only where activations are rounded, a value between two levels may go either way: one
# step of 8 bits.
ROUNDING = dict.fromkeys(COMPRESSORS, 1e-5) | {"qat": 1 / 128, "ptq": 1 / 128}
# Pairs cannot be formed of one or three inputs; channels cannot be removed from these.
REFUSED = {
    *(("conv", "n:m"), ("separable", "n:m")),
    *((shape, "l1norm") for shape in ("separable", "recurrent", "attention", "shared")),
}
TRAINING = ("fit", "train_on_batch", "tape")


def data_of(model):
    given = model.inputs if getattr(model, "inputs", None) else [keras.KerasTensor((None, 6))]
    arrays = [
        RNG.standard_normal((8, *x.shape[1:])).astype("float32")
        if "float" in x.dtype
        else RNG.integers(0, 10, (8, *x.shape[1:])).astype("int32")
        for x in given
    ]
    return arrays[0] if len(arrays) == 1 else arrays, RNG.standard_normal((8, 3)).astype("float32")


def train(model, x, y, how, compressor):
    if how == "fit":
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[compressor.callback()])
        return
    for epoch in range(2):
        compressor.update_epoch(epoch)
        if how == "train_on_batch" or keras.backend.backend() != "tensorflow":
            model.train_on_batch(x, y)
            continue
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(model(x, training=True) - y))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)


def zeros_are_held(compressor):
    """Whether raw weights are zero wherever their mask is."""
    for wrapper in compressor.get_wrappers():
        mask = ops.convert_to_numpy(wrapper.weight_mask)
        weight = wrapper.weight.detach() if hasattr(wrapper.weight, "detach") else wrapper.weight
        if np.any(ops.convert_to_numpy(weight)[mask == 0]):
            return False
    return True


CASES = [
    (shape, name, TRAINING[(i + j) % 3])
    for i, shape in enumerate(SHAPES)
    for j, name in enumerate(COMPRESSORS)
]


@pytest.mark.parametrize(
    ("shape", "name", "how"), CASES, ids=[f"{s.__name__}-{n}-{h}" for s, n, h in CASES]
)
def test_right_or_refused(shape, name, how, tmp_path):
    keras.utils.set_random_seed(0)
    model = shape()
    classes = [type(layer) for layer in model._flatten_layers()]
    names = [variable.path for variable in model.weights]
    x, y = data_of(model)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    before = model.predict_on_batch(x)
    try:
        compressor = COMPRESSORS[name](model, model.optimizer)
        compressor.compress()
        if name == "ptq":
            compressor.calibrate([x])
        train(model, x, y, how, compressor)
    except LilliputError:  # refused: the model is plain, or can be made so
        assert (shape.__name__, name) in REFUSED
        if "compressor" in locals():
            compressor.strip()
        assert [type(layer) for layer in model._flatten_layers()] == classes
        assert model.predict_on_batch(x).shape == before.shape
        return
    received = model.predict_on_batch(x)
    assert np.isfinite(received).all() and not np.array_equal(received, before)
    eager = model(x, training=False)
    eager = ops.convert_to_numpy(eager.detach() if hasattr(eager, "detach") else eager)
    tolerance = ROUNDING[name] * np.abs(received).max()
    assert np.abs(eager - received).max() <= tolerance
    if name in PRUNERS:
        assert zeros_are_held(compressor)
    compressor.state().save(tmp_path / "state")
    model.save(tmp_path / "model.keras")
    compressor.strip()
    assert [type(layer) for layer in model._flatten_layers()] == classes
    assert [variable.path for variable in model.weights] == names
    plain = model.predict_on_batch(x)
    if name in PRUNERS:
        assert np.allclose(plain, received, atol=1e-6)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.allclose(loaded.predict_on_batch(x), plain, atol=1e-5)
    again = COMPRESSORS[name](loaded, None)
    again.compress()
    again.load_state(tmp_path / "state")
    assert np.abs(loaded.predict_on_batch(x) - received).max() <= tolerance
