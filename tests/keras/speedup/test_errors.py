import keras
import numpy as np
import pytest
from keras import layers

from lilliput.errors import StageError, StateError, UnsupportedModelError
from lilliput.frameworks.keras.lowering import LOWERINGS
from lilliput.speedup.channels import channel_groups
from lilliput.speedup.shrink import speedup


def net():
    hidden = layers.Dense(8, "relu", name="hidden")
    return keras.Sequential([keras.Input((4,)), hidden, layers.Dense(2, name="head")])


class Plain(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = layers.Dense(8, "relu", name="hidden")
        self.head = layers.Dense(2, name="head")

    def call(self, x):
        return self.head(self.hidden(x))


def built():
    model = Plain()
    model(np.zeros((2, 4), "float32"))
    return model


def test_a_subclassed_model_has_groups_but_cannot_be_built_again():
    model = built()
    groups = channel_groups(model, np.zeros((2, 4), "float32"))
    assert [g.name for g in groups] == ["hidden.kernel"]
    with pytest.raises(UnsupportedModelError, match=r"subclassed model.*keras\.Model\(inputs"):
        speedup(model, np.zeros((2, 4), "float32"))


class Closed(Plain):
    def __init__(self):
        super().__init__()


def around(inner):
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="first")(inputs)
    x = layers.Dense(6, name="last")(inner(x))
    return keras.Model(inputs, layers.Dense(2)(x))


def test_a_subclassed_model_inside_keeps_its_channels(group_masks, shaken):
    model = shaken(around(Plain()))
    result = speedup(model, masks=group_masks(model))
    assert result.model.get_layer("last").units == 3
    assert result.model.get_layer("first").units == 4
    assert any("subclassed" in note for note in result.notes)


def test_a_model_inside_that_cannot_be_copied_is_named(group_masks, shaken):
    model = shaken(around(Closed()))
    with pytest.raises(UnsupportedModelError, match=r"layer 'closed.*get_config"):
        speedup(model, masks=group_masks(model))


def test_what_is_no_model_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"keras\.Sequential\(\[layer\]\)"):
        speedup(layers.Dense(3))
    with pytest.raises(UnsupportedModelError, match="not built"):
        speedup(keras.Sequential([layers.Dense(3)]))


def test_without_masks_there_is_nothing_to_cut():
    with pytest.raises(StageError, match="nothing to cut"):
        speedup(net())


def test_a_weight_of_zero_alone_removes_nothing():
    model = net()
    model.get_layer("hidden").kernel.assign(np.zeros((4, 8)))
    with pytest.raises(StageError, match="nothing to cut"):
        speedup(model)


def test_masks_that_do_not_fit_are_all_named():
    masks = {
        "other.kernel": np.ones(3),
        "hidden.kernel": np.ones((2, 2)),
        "hidden.bias": np.full(8, 2),
    }
    with pytest.raises(StateError) as error:
        speedup(net(), masks=masks)
    assert all(name in str(error.value) for name in masks)


def test_open_sizes_ask_for_examples(group_masks, shaken):
    model = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(8, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    masks = group_masks(shaken(model))
    with pytest.raises(UnsupportedModelError, match="example_inputs"):
        speedup(model, masks=masks)
    x = np.ones((2, 6, 5, 3), "float32")
    result = speedup(model, x, masks=masks)
    assert result.macs == (2 * (4 * 3 * 27 * 8 + 16), 2 * (4 * 3 * 27 * 4 + 8))


def test_masks_of_filters_alone_are_completed_on_request(shaken):
    model = shaken(net())
    keep = np.arange(8) < 4
    masks = {"hidden.kernel": np.tile(keep, (4, 1))}
    with pytest.raises(StageError, match="extend_masks"):
        speedup(model, masks=masks)
    result = speedup(model, masks=masks, extend_masks=True)
    assert result.model.get_layer("hidden").units == 4
    assert any("extended" in note for note in result.notes)


def test_of_a_layer_that_is_masked_altogether_one_channel_stays(shaken):
    model = shaken(net())
    zeros = {"hidden.kernel": (4, 8), "hidden.bias": (8,), "head.kernel": (8, 2)}
    result = speedup(model, masks={name: np.zeros(shape) for name, shape in zeros.items()})
    assert result.model.get_layer("hidden").units == 1


def test_a_rule_that_were_wrong_would_be_found_out(group_masks, shaken, monkeypatch):
    def wrong(writer):
        turned = writer.permute(writer.input(), [0, 3, 1, 2])
        return writer.op("reshape", writer.shape(), input=turned)

    monkeypatch.setitem(LOWERINGS, "Flatten", wrong)
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), layers.Conv2D(6, 1), layers.Flatten(), layers.Dense(2)]
    )
    masks = group_masks(shaken(model))
    with pytest.raises(UnsupportedModelError, match="does not reproduce the outputs"):
        speedup(model, masks=masks)


def test_zeros_that_stay_are_mentioned(group_masks, shaken):
    model = shaken(net())
    masks = group_masks(model)
    masks["head.kernel"][np.flatnonzero(masks["head.kernel"].any(axis=1))[0], 0] = False
    notes = speedup(model, masks=masks).notes
    assert any("head.kernel" in note and "no longer enforced" in note for note in notes)
