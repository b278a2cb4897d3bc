"""What torch does to transformer layers in evaluation, and compressors inside them."""

import copy

import pytest
import torch
from torch import nn

from lilliput.testing.observe import quantizes_activations
from lilliput.torch import (
    ActivationAPoZRankPruner,
    Distiller,
    DoReFaQuantizer,
    LevelPruner,
    LSQQuantizer,
    NaiveQuantizer,
    PTQQuantizer,
    QATQuantizer,
    strip,
)

# What torch says of its own fast path, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

RULES = [{"op_names": ["layers.*.linear*"]}]


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


def padded():
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 4:] = True
    made = torch.Generator().manual_seed(1)
    return {"src": torch.randn(4, 6, 16, generator=made), "src_key_padding_mask": mask}


@torch.no_grad()
def answer(model, batch, is_fused=True):
    """Return what a model computes where there is no padding."""
    torch.backends.mha.set_fastpath_enabled(is_fused)
    try:
        return model(**batch)[~batch["src_key_padding_mask"]]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize(
    "cls", [NaiveQuantizer, DoReFaQuantizer, PTQQuantizer, QATQuantizer, LSQQuantizer]
)
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_padded_batch_reaches_the_layers_of_a_quantized_encoder(cls, is_pruned):
    model, batch = encoder(), padded()
    pruner = LevelPruner(model, [{**RULES[0], "sparsity": 0.5}])
    if is_pruned:
        pruner.compress()
    before = answer(model, batch)
    types = {"quant_types": ["weight", "input"]} if cls is DoReFaQuantizer else {}
    quantizer = cls(model, [{**RULES[0], **types}])
    quantizer.compress()
    if cls is not DoReFaQuantizer and cls is not NaiveQuantizer:
        quantizer.calibrate([batch], progress=False)
    found = answer(model, batch)
    torch.testing.assert_close(found, answer(model, batch, is_fused=False), atol=1e-5, rtol=1e-5)
    assert not torch.equal(found, before)
    assert model.use_nested_tensor is not quantizes_activations(quantizer)
    twin = strip(copy.deepcopy(model))
    quantizer.strip()
    for each in (model, twin):
        assert each.use_nested_tensor and "_lilliput_packs" not in vars(each)
        torch.testing.assert_close(answer(each, batch), before)


def test_a_padded_batch_shows_what_layers_return_to_pruners_and_distillers():
    model, batch = encoder(), padded()
    original = answer(model, batch)
    distiller = Distiller(model, [{"op_names": ["layers.0.linear1"], "loss": "mse"}])
    distiller.compress()
    torch.testing.assert_close(answer(model, batch), original, atol=1e-5, rtol=1e-5)
    distiller.strip()
    pruner = ActivationAPoZRankPruner(model, [{"op_names": ["layers.*.linear1"], "sparsity": 0.5}])
    pruner.calibrate([batch])
    pruner.compress()
    for layer in model.layers:
        assert int((layer.linear1.weight == 0).all(1).sum()) == 16
    assert torch.backends.mha.get_fastpath_enabled()
