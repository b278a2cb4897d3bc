"""speedup, preflight, save and load mean the same on both frameworks: one test for the two of them."""

import copy
import json
from dataclasses import fields
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import torch
from keras import layers
from torch import nn

import lilliput.keras
import lilliput.torch
from lilliput.errors import ConfigError, StateError, UnsupportedModelError

IMAGES = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype("float32")
RULES = [{"op_names": ["first", "second"], "sparsity": 0.5}]


def array(x):
    return np.array(keras.ops.convert_to_numpy(x.detach() if hasattr(x, "detach") else x))


class TorchNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width, eps=1e-3)
        self.second, self.head = nn.Conv2d(width, 6, 1), nn.Linear(6, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


def keras_net(width=8):
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(width, 3, name="first")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    x = layers.Conv2D(6, 1, activation="relu", name="second")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


def torch_copy(source):
    """Return the torch network with the numbers of the Keras one."""
    model = TorchNet().eval()
    with torch.no_grad():
        for name in ("first", "second", "head"):
            layer, own = source.get_layer(name), getattr(model, name)
            kernel = array(layer.kernel)
            order = (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)
            own.weight.copy_(torch.from_numpy(kernel.transpose(order).copy()))
            own.bias.copy_(torch.from_numpy(array(layer.bias)))
    return model


def make(framework):
    if framework == "keras":
        return SimpleNamespace(
            api=lilliput.keras,
            x=IMAGES,
            model=keras_net(),
            net=keras_net,
            run=lambda model: array(model(IMAGES, training=False)),
            width=lambda model: model.get_layer("first").filters,
            weights=lambda model: [array(x) for x in model.variables],
            shift=lambda model: [x.assign(array(x) + 0.1) for x in model.trainable_variables],
        )
    x = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
    return SimpleNamespace(
        api=lilliput.torch,
        x=x,
        model=torch_copy(keras_net()),
        net=lambda *args: TorchNet(*args).eval(),
        run=lambda model: model(x).detach().numpy(),
        width=lambda model: model.first.out_channels,
        weights=lambda model: [x.numpy().copy() for x in model.state_dict().values()],
        shift=lambda model: [x.data.add_(0.1) for x in model.parameters()],
    )


@pytest.fixture(params=["torch", "keras"])
def lab(request):
    return make(request.param)


def pruned(lab):
    pruner = lab.api.L1NormPruner(lab.model, RULES, example_inputs=lab.x)
    pruner.compress()
    return pruner


def test_the_model_is_changed_in_place_and_the_pruner_leaves_it(lab):
    pruner = pruned(lab)
    masked, kind = lab.run(lab.model), type(lab.net())
    result = lab.api.speedup(lab.model, lab.x)
    assert result.model is lab.model and lab.width(lab.model) == 4
    assert type(lab.model) is kind and not pruner.is_wrapped
    assert np.abs(lab.run(lab.model) - masked).max() <= 1e-5 * np.abs(masked).max()
    lab.api.L1NormPruner(
        lab.model, RULES, example_inputs=lab.x
    ).compress()  # it is a plain model again
    assert lab.width(lab.api.speedup(lab.model, lab.x).model) == 2


def test_a_copy_is_cut_on_request_and_the_model_stays_under_its_pruner(lab):
    pruner = pruned(lab)
    before, masked = lab.weights(lab.model), lab.run(lab.model)
    result = lab.api.speedup(lab.model, lab.x, inplace=False)
    assert result.model is not lab.model and pruner.is_wrapped
    assert (lab.width(lab.model), lab.width(result.model)) == (8, 4)
    assert all(np.array_equal(a, b) for a, b in zip(before, lab.weights(lab.model), strict=True))
    assert np.abs(lab.run(result.model) - masked).max() <= 1e-5 * np.abs(masked).max()
    lab.shift(result.model)  # it has weights of its own
    assert np.array_equal(lab.run(lab.model), masked)


def test_an_optimizer_is_not_for_a_copy(lab):
    with pytest.raises(ConfigError, match="optimizer"):
        lab.api.speedup(lab.model, lab.x, optimizer=object(), inplace=False)


def test_zeros_count_after_the_pruner_has_left(lab):
    pruner = pruned(lab)
    masked = lab.run(lab.model)
    pruner.strip()
    result = lab.api.speedup(lab.model, lab.x)
    assert lab.width(result.model) == 4
    assert np.abs(lab.run(result.model) - masked).max() <= 1e-5 * np.abs(masked).max()


def test_masks_may_be_given(lab, tmp_path):
    pruner, source = pruned(lab), lab.net()
    suffix = "keras" if lab.api is lilliput.keras else "pth"
    path = tmp_path / "masks.safetensors"
    pruner.export_model(str(tmp_path / f"model.{suffix}"), str(path))
    before = lab.weights(source)
    with pytest.raises(StateError, match="masks do not fit the model"):
        lab.api.speedup(source, lab.x, masks={"nowhere.weight": np.ones(3)})
    assert all(np.array_equal(a, b) for a, b in zip(before, lab.weights(source), strict=True))
    assert lab.width(lab.api.speedup(source, lab.x, masks=path).model) == 4


def test_every_field_of_a_result_means_the_same():
    source = keras_net()
    labs = [make("torch"), make("keras")]
    labs[0].model, labs[1].model = torch_copy(source), source
    checks = [lab.api.preflight(lab.model, lab.x) for lab in labs]
    for lab in labs:
        pruned(lab)
    masked = [lab.api.preflight(lab.model, lab.x) for lab in labs]
    first, second = [lab.api.speedup(lab.model, lab.x) for lab in labs]
    assert type(first) is type(second)
    assert {x.name for x in fields(first)} >= {"model", "plan", "error", "source", "remembered"}
    assert (first.kind, first.parameters, first.macs) == ("module", second.parameters, second.macs)
    assert second.kind == "module" and max(first.error, second.error) < 1e-6
    assert list(first.removed.values()) == list(second.removed.values()) == [(4, 8), (3, 6)]
    assert len(first.cuts) == len(second.cuts) == 10
    assert first.remembered == second.remembered == {}
    assert (
        sorted(map(np.prod, first.source.values()))[-8:]
        == sorted(map(np.prod, second.source.values()))[-8:]
    )
    shown = [str(x).replace("kernel", "weight").splitlines()[:4] for x in (first, second)]
    assert shown[0] == shown[1]
    for one, two in (checks, masked):
        assert repr(one) == repr(two)
        assert [int(x.sum()) for x in one.masked.values()] == [
            int(x.sum()) for x in two.masked.values()
        ]
    assert [int(x.sum()) for x in masked[0].masked.values()] == [4, 3]
    for a, b in (
        (first.receipt.before, second.receipt.before),
        (first.receipt.after, second.receipt.after),
    ):
        assert (a.parameters, a.nonzeros, a.macs) == (b.parameters, b.nonzeros, b.macs)
        assert a.runs and b.runs


def test_a_saved_model_comes_back_in_place(lab, tmp_path):
    pruned(lab)
    result = lab.api.speedup(lab.model, lab.x)
    lab.shift(result.model)  # as fine-tuning would
    result.save(tmp_path)
    fresh = lab.net()
    assert lab.api.load(fresh, tmp_path) is fresh
    assert lab.width(fresh) == 4
    assert np.array_equal(lab.run(fresh), lab.run(result.model))
    assert len(list(tmp_path.iterdir())) == 2
    lab.shift(result.model)
    result.save(tmp_path)  # again: the old weights go
    assert len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(lab.run(lab.api.load(lab.net(), tmp_path)), lab.run(result.model))


def edit(folder, change):
    path = folder / "lilliput.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def too_far(document):
    document["cuts"][0]["keep"] = [0, 99]


def ragged(document):
    document["cuts"][0]["keep"] = [[0, 1], [0]]


def half_a_channel(document):
    document["cuts"].pop()


@pytest.mark.parametrize("change", [too_far, ragged, half_a_channel])
def test_a_plan_that_does_not_fit_leaves_the_model_as_it_was(lab, change, tmp_path):
    pruned(lab)
    lab.api.speedup(lab.model, lab.x).save(tmp_path)
    edit(tmp_path, change)
    fresh = lab.net()
    before, held = lab.run(fresh), copy.copy(vars(fresh))
    with pytest.raises(StateError, match="does not fit"):
        lab.api.load(fresh, tmp_path)
    assert np.array_equal(lab.run(fresh), before) and lab.width(fresh) == 8
    assert vars(fresh).keys() == held.keys()


def test_other_models_and_damaged_files_are_refused(lab, tmp_path):
    pruned(lab)
    result = lab.api.speedup(lab.model, lab.x)
    result.save(tmp_path)
    with pytest.raises(StateError, match=r"first\.(weight|kernel) has shape"):
        lab.api.load(lab.net(10), tmp_path)
    with pytest.raises(StateError, match="the model before shrinking"):
        lab.api.load(result.model, tmp_path)
    lab.model = lab.net()
    pruned(lab)
    with pytest.raises(StateError, match="a compressor is attached"):
        lab.api.load(lab.model, tmp_path)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"x")
    with pytest.raises(StateError, match="damaged"):
        lab.api.load(lab.net(), tmp_path)


def test_a_folder_of_the_other_framework_is_refused(tmp_path):
    lab, other = make("torch"), make("keras")
    pruned(lab)
    lab.api.speedup(lab.model, lab.x).save(tmp_path)
    with pytest.raises(StateError, match="a different model"):
        lilliput.keras.load(other.model, tmp_path)


def test_a_keras_model_made_by_code_of_its_own_is_left_alone():
    class Own(keras.Model):
        def __init__(self, width):
            inputs = keras.Input((5,))
            x = layers.Dense(width, "relu", name="first")(inputs)
            super().__init__(inputs, layers.Dense(2)(x))

    model = Own(8)
    pruner = lilliput.keras.L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}])
    pruner.compress()
    result = lilliput.keras.speedup(model)
    assert result.model is not model and type(model) is Own
    assert (model.get_layer("first").units, result.model.get_layer("first").units) == (8, 4)
    assert any("has its own constructor" in note for note in result.notes)


def test_open_sizes_and_several_inputs_are_saved(tmp_path):
    def net():
        images, extra = keras.Input((None, None, 3), name="images"), keras.Input((4,), name="extra")
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, name="conv")(images))
        x = layers.Concatenate()([x, layers.Dense(4, name="side")(extra)])
        return keras.Model([images, extra], layers.Dense(2)(layers.Dropout(0.5)(x)))

    inputs = [IMAGES, np.ones((2, 4), "float32")]
    model = net()
    lilliput.keras.L1NormPruner(
        model, [{"op_names": ["conv", "side"], "sparsity": 0.5}], example_inputs=inputs
    ).compress()
    result = lilliput.keras.speedup(model, inputs)
    result.save(tmp_path)
    again = lilliput.keras.load(net(), tmp_path)
    assert again.get_layer("conv").filters == 4 and again.get_layer("side").units == 2
    assert np.array_equal(array(again(inputs)), array(result.model(inputs)))
    with pytest.raises(UnsupportedModelError, match="received"):
        lilliput.keras.load("no model", tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_keras_weights_of_a_shrunk_model_are_not_rounded_by_loading(dtype, tmp_path):
    def net(dtype):
        first = layers.Dense(8, name="a", dtype=dtype)
        return keras.Sequential([keras.Input((4,)), first, layers.Dense(2, name="b", dtype=dtype)])

    def saved(dtype, folder):
        model, x = net(dtype), np.ones((2, 4), dtype="float32")
        lilliput.keras.L1NormPruner(model, [{"op_names": ["a"], "sparsity": 0.5}]).compress()
        result = lilliput.keras.speedup(model, x)
        result.save(folder)
        return result.model

    saved("float32", tmp_path / "wide")
    with pytest.raises(StateError, match=f"is float32, expected {dtype}"):
        lilliput.keras.load(net(dtype), tmp_path / "wide")
    shrunk = saved(dtype, tmp_path / "narrow")
    again = lilliput.keras.load(net(dtype), tmp_path / "narrow")
    for one, two in zip(again.weights, shrunk.weights, strict=True):
        assert np.array_equal(*(array(x.value).astype("float32") for x in (one, two)))
