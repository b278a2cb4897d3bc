import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from lilliput.errors import StageError
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.narrow import Narrow, keep_of
from lilliput.torch import LevelPruner, NaiveQuantizer

HALF = [{"op_types": ["Linear"], "sparsity": 0.5}]


def test_init_subclass_of_a_users_class_is_not_run():
    registry = {}

    class Registered(nn.Linear):
        def __init_subclass__(cls, *, needed, **kwargs):
            registry[cls.__name__] = cls
            raise RuntimeError("a subclass of mine?")

    model = nn.Sequential(Registered(4, 4))
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    assert int((model[0].weight == 0).sum()) == 8 and registry == {}
    pruner.strip()
    assert type(model[0]) is Registered and list(model.state_dict()) == ["0.weight", "0.bias"]


def test_classes_made_in_functions_are_freed():
    def compress_one():
        class Local(nn.Linear):
            pass

        layer = Local(4, 4)
        pruner = LevelPruner(layer, HALF)
        pruner.compress()
        layer(torch.ones(1, 4)).sum().backward()
        pruner.strip()
        return weakref.ref(Local), weakref.ref(layer)

    references = compress_one()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_compressed_model_that_nobody_strips_is_freed():
    layer = nn.Linear(4, 4)
    LevelPruner(layer, HALF).compress()
    layer(torch.ones(1, 4)).sum().backward()
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_parametrization_on_a_compressed_layer_is_refused(is_quantized):
    class Shrinking(nn.Module):
        def forward(self, weight):
            return weight / 2

        def right_inverse(self, weight):
            return weight * 2

    layer = nn.Linear(4, 4)
    if is_quantized:
        NaiveQuantizer(layer, [{"quant_bits": 4}]).compress()
    else:
        LevelPruner(layer, HALF).compress()
    before = layer.get_parameter("weight").detach().clone()
    with pytest.raises(StageError, match=r"'weight' of this Linear is compressed.*strip\(\)"):
        parametrize.register_parametrization(layer, "weight", Shrinking())
    assert torch.equal(layer.get_parameter("weight"), before)
    assert not parametrize.is_parametrized(layer)
    layer(torch.ones(1, 4))


def test_an_uncompressed_attribute_of_a_compressed_layer_can_be_parametrized():
    layer = nn.Linear(4, 4)
    parameter = layer.weight
    quantizer = NaiveQuantizer(layer, [{"quant_bits": 2}])
    quantizer.compress()
    parametrize.register_parametrization(layer, "bias", nn.Softplus())
    assert len(layer.weight.unique()) <= 4 and bool((layer.bias > 0).all())
    layer(torch.ones(1, 4)).sum().backward()
    quantizer.strip()
    assert layer.weight is parameter and bool((layer.bias > 0).all())
    layer(torch.ones(1, 4)).sum().backward()


def test_a_norm_sees_all_channels_again_below_a_class_put_on_top():
    keep = keep_of(0, np.array([True, True, False, False]))
    along = [(1, *keep[1:])]
    norm, x = nn.LayerNorm(4), torch.randn(2, 4)
    expected = norm(x)
    set_narrow(norm, Narrow(nn.LayerNorm(2), along, along, {"weight": [keep], "bias": [keep]}))
    norm.__class__ = type("FSDPLayerNorm", (type(norm),), {})  # as fully_shard does
    assert (norm(x)[:, 2:] == 0).all()
    set_narrow(norm, None)
    assert torch.equal(norm(x), expected)
