"""Pruners mask whole groups on Keras as on torch, and speedup cuts them out."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.errors import ConfigError, StageError, StateError
from lilliput.keras import AGPPruner, FPGMPruner, L1NormPruner, LevelPruner, NaiveQuantizer
from lilliput.speedup.shrink import speedup


def array(x):
    return np.array(keras.ops.convert_to_numpy(x.detach() if hasattr(x, "detach") else x))


def residual():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(inputs)
    y = layers.Conv2D(12, 3, padding="same", groups=2, name="a")(x)
    y = layers.ReLU()(layers.BatchNormalization(name="bn")(y))
    y = layers.Conv2D(8, 1, name="b")(y)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(inputs, layers.Dense(5, name="head")(x))


def images(count=4):
    return np.random.default_rng(0).standard_normal((count, 8, 8, 3)).astype("float32")


@pytest.mark.parametrize("pruner", [L1NormPruner, FPGMPruner])
def test_a_functional_model_needs_no_example_inputs(pruner):
    model = residual()
    pruner(model, [{"sparsity": 0.5}]).compress()
    masked = array(model(images(), training=False))
    result = speedup(model)
    assert [result.model.get_layer(x).filters for x in ("stem", "a", "b")] == [4, 6, 4]
    received = array(result.model(images(), training=False))
    assert np.abs(masked - received).max() <= 1e-5 * np.abs(masked).max()


def test_pruned_while_training_and_trained_on():
    model = residual()
    model.compile("adam", "mse")
    rules = [{"op_types": ["Conv2D"], "final_sparsity": 0.5, "end_epoch": 2}]
    pruner = AGPPruner(model, rules, model.optimizer, "l1", example_inputs=images())
    pruner.compress()
    target = np.ones((4, 5), "float32")
    for epoch in range(3):
        pruner.update_epoch(epoch)
        model.fit(images(), target, epochs=1, verbose=0)
    masked = array(model(images(), training=False))
    small = speedup(model, images()).model
    received = array(small(images(), training=False))
    assert np.abs(masked - received).max() <= 1e-5 * np.abs(masked).max()
    small.compile("adam", "mse")
    small.fit(images(), target, epochs=1, verbose=0)


def test_budgets_are_met_without_example_inputs():
    model = residual()
    pruner = L1NormPruner(model, [{"max_macs": 0.4}])
    pruner.compress()
    before, after = speedup(model).macs
    assert after <= 0.4 * before


def test_an_excluded_layer_protects_its_group():
    model = residual()
    rules = [{"op_types": ["Conv2D"], "sparsity": 0.5}, {"op_names": ["b"], "exclude": True}]
    L1NormPruner(model, rules).compress()
    small = speedup(model).model
    assert [small.get_layer(x).filters for x in ("stem", "a", "b")] == [8, 6, 8]


def test_a_layer_that_cannot_lose_channels_says_why():
    with pytest.raises(ConfigError, match="they are the model's output"):
        L1NormPruner(residual(), [{"op_names": ["head"], "sparsity": 0.5}]).compress()


def test_masks_of_two_pruners_count_together():
    model = residual()
    LevelPruner(model, [{"op_names": ["stem"], "sparsity": 0.2}]).compress()
    L1NormPruner(model, [{"op_types": ["Conv2D"], "sparsity": 0.5}]).compress()
    result = speedup(model)
    assert any("stem.kernel" in note for note in result.notes)
    assert result.model.get_layer("stem").filters == 4


def test_masks_from_a_file_are_as_good(tmp_path):
    model = residual()
    pruner = L1NormPruner(model, [{"op_types": ["Conv2D"], "sparsity": 0.5}])
    pruner.compress()
    masked = array(model(images(), training=False))
    pruner.export_model(str(tmp_path / "model.keras"), str(tmp_path / "masks.safetensors"))
    plain = keras.models.load_model(tmp_path / "model.keras")
    masks = tmp_path / "masks.safetensors"
    by_zeros = speedup(plain, inplace=False)
    result = speedup(plain, masks=masks, inplace=False)
    assert by_zeros.removed == result.removed
    assert result.model.get_layer("a").filters == 6
    received = array(result.model(images(), training=False))
    assert np.abs(masked - received).max() <= 1e-5 * np.abs(masked).max()
    with pytest.raises(StateError, match="no readable masks"):
        speedup(plain, masks=tmp_path / "model.keras")


def test_a_quantized_model_is_refused():
    model = residual()
    L1NormPruner(model, [{"op_types": ["Conv2D"], "sparsity": 0.5}]).compress()
    NaiveQuantizer(model, [{"op_types": ["Conv2D"]}]).compress()
    with pytest.raises(StageError, match="shrink first"):
        speedup(model)


def test_the_same_channels_go_as_on_torch():
    torch = pytest.importorskip("torch")
    import lilliput.torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.a = torch.nn.Conv2d(8, 12, 3, padding=1, groups=2)
            self.bn = torch.nn.BatchNorm2d(12)
            self.b = torch.nn.Conv2d(12, 8, 1)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x):
            x = self.stem(x)
            y = self.b(self.bn(self.a(x)).relu())
            return self.head((x + y).relu().mean((2, 3)))

    model, twin = residual(), Net().eval()
    for name in ("stem", "a", "b"):
        kernel = array(model.get_layer(name).kernel)
        with torch.no_grad():
            getattr(twin, name).weight.copy_(torch.from_numpy(kernel.transpose(3, 2, 0, 1)))
    rules = [{"op_names": ["stem", "a", "b"], "sparsity": 0.5}]
    ours = L1NormPruner(model, rules)
    theirs = lilliput.torch.L1NormPruner(twin, rules, example_inputs=torch.zeros(2, 3, 8, 8))
    ours.compress()
    theirs.compress()
    masks = {w.name: array(w.weight_mask) for w in ours.get_modules_wrapper()}
    for wrapper in theirs.get_modules_wrapper():
        mask = masks[wrapper.name].transpose(3, 2, 0, 1)
        assert np.array_equal(mask, wrapper.weight_mask.numpy())
        assert 0 < mask.mean() < 0.6
