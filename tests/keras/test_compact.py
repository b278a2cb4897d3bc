"""save and load of Keras models: the same files, the same promises."""

import keras
import numpy as np
import pytest

import lilliput.keras as lk
from lilliput.errors import LilliputError, StateError


def net(units=16):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(units, activation="relu", name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(4, name="last"),
        ]
    )


def emptied():
    model = net()
    for variable in model.weights:
        variable.assign(np.zeros(variable.shape))
    return model


INPUT = np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 12)


@pytest.mark.parametrize("compact", [False, True])
def test_a_plain_model_comes_back_bit_for_bit(tmp_path, compact):
    model, again = net(), emptied()
    lk.save(model, tmp_path / "m.lil", compact=compact)
    lk.load(again, tmp_path / "m.lil")
    for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: lk.LevelPruner(m, [{"op_names": ["first"], "sparsity": 0.9}]),
        lambda m: lk.NaiveQuantizer(m, [{"op_names": ["first"], "quant_bits": 4}]),
    ],
    ids=["pruned", "4 bits"],
)
def test_what_a_compressor_makes_of_weights_is_written(tmp_path, make):
    model, again = net(), emptied()
    make(model).compress()
    expected = keras.ops.convert_to_numpy(model(INPUT))
    lk.save(model, tmp_path / "m.lil", compact=True)
    lk.load(again, tmp_path / "m.lil")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(again(INPUT)), expected, atol=1e-6)
    kernel = keras.ops.convert_to_numpy(again.get_layer("first").kernel)
    np.testing.assert_array_equal(
        kernel, keras.ops.convert_to_numpy(model.get_layer("first").kernel)
    )


def test_another_model_and_quantized_activations_are_refused(tmp_path):
    lk.save(net(), tmp_path / "m.lil", compact=True)
    with pytest.raises(StateError, match=r"'first/kernel' is float32 of shape \[12, 16\]"):
        lk.load(net(8), tmp_path / "m.lil")
    model = net()
    rule = {"op_types": ["Dense"], "quant_types": ["weight", "input"], "quant_bits": 8}
    lk.QATQuantizer(model, [rule]).compress()
    with pytest.raises(LilliputError, match="quantized"):
        lk.save(model, tmp_path / "n.lil", compact=True)
    with pytest.raises(StateError, match="strip"):
        lk.load(model, tmp_path / "m.lil")


class Relative(keras.layers.Layer):
    """Has a matrix that is called bias, and a bias."""

    def build(self, shape):
        self.bias = self.add_weight((50, 50), "random_normal", name="bias")
        self.out_bias = self.add_weight((shape[-1],), "random_normal", name="out_bias")

    def call(self, inputs):
        return inputs + self.out_bias + self.bias[0, 0]


def test_bias_bits_round_the_biases_of_all_layers_and_no_matrices(tmp_path):
    def make():
        gru = keras.layers.GRU(
            16, return_sequences=True, bias_initializer="random_normal", name="gru"
        )
        dense = keras.layers.Dense(16, bias_initializer="random_normal", name="dense")
        return keras.Sequential([keras.Input((5, 8)), gru, dense, Relative(name="relative")])

    keras.utils.set_random_seed(0)
    model, again = make(), make()
    lk.save(model, tmp_path / "m", compact=True, bias_bits=2)
    lk.load(again, tmp_path / "m")
    pairs = zip(model.weights, again.weights, strict=True)
    arrays = {
        one.path: [np.array(keras.ops.convert_to_numpy(v)) for v in (one, two)]
        for one, two in pairs
    }
    changed = {path for path, (one, two) in arrays.items() if not np.array_equal(one, two)}
    assert len(changed) == 3 and all(len(np.unique(arrays[path][1])) <= 3 for path in changed)
    assert {path.rpartition("/")[2] for path in changed} == {"bias", "out_bias"}
    assert sorted(arrays[path][0].shape for path in changed) == [(2, 48), (16,), (16,)]
