"""Embeddings that dominate a model are quantized with it, unless a rule says otherwise."""

import pytest
import torch
from torch import nn

from lilliput.torch import PTQQuantizer, QATQuantizer, export_onnx

LINEAR = {"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 8}


class Text(nn.Module):
    def __init__(self, rows=4200, width=64, hidden=64):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(rows, width)
        self.places = nn.Embedding(16, width)
        self.hidden = nn.Linear(width, hidden)
        self.head = nn.Linear(hidden, 8)

    def forward(self, ids):
        places = self.places(torch.arange(ids.shape[1]))
        return self.head(self.hidden(self.words(ids) + places).relu()).mean(1)


def taken(model, rules, quantizer=PTQQuantizer):
    return [layer.name for layer in quantizer(model, rules).selection.chosen]


@pytest.mark.parametrize("quantizer", [PTQQuantizer, QATQuantizer])
def test_a_table_that_dominates_the_model_is_quantized_by_row(quantizer):
    model = Text()
    found = quantizer(model, [LINEAR])
    assert "words" in taken(model, [LINEAR]) and "places" not in taken(model, [LINEAR])
    assert "by default: an embedding with 98% of the weights" in found.explain()
    before = model.words.weight.detach().clone()
    found.compress()
    scale = before.abs().amax(1, keepdim=True) / 127
    assert torch.allclose(model.words.weight, (before / scale).round() * scale, atol=1e-6)


def test_a_rule_that_names_or_excludes_the_table_decides():
    model = Text()
    assert "words" not in taken(model, [LINEAR, {"op_types": ["Embedding"], "exclude": True}])
    assert "words" not in taken(model, [LINEAR, {"op_names": ["words"], "exclude": True}])
    asked = {"op_names": ["words"], "quant_bits": 4}
    (layer,) = (
        x for x in PTQQuantizer(model, [LINEAR, asked]).selection.chosen if x.name == "words"
    )
    assert layer.config["quant_bits"] == 4


def test_small_tables_and_small_shares_stay_in_float():
    assert "words" not in taken(Text(rows=4000), [LINEAR])  # less than 1 MiB
    assert "words" not in taken(
        Text(width=128, rows=2100, hidden=24_000), [LINEAR]
    )  # less than 10 %


def test_tables_stay_where_no_weight_is_quantized():
    assert taken(Text(), [{"op_types": ["Linear"], "quant_types": ["output"]}]) == [
        "hidden",
        "head",
    ]


def test_a_tied_table_is_left_to_the_rules():
    model = Text()
    model.decoder = nn.Linear(64, 4200, bias=False)
    model.decoder.weight = model.words.weight
    assert taken(model, [{**LINEAR, "op_names": ["hidden", "head"]}]) == ["hidden", "head"]


def test_the_export_says_what_was_quantized_by_default(tmp_path):
    model, ids = Text(), torch.randint(0, 4200, (2, 6))
    quantizer = PTQQuantizer(model, [LINEAR])
    quantizer.compress()
    result = export_onnx(quantizer, tmp_path / "text.onnx", ids)
    assert result.bytes < 4200 * 64 * 1.15
    (note,) = (note for note in result.notes if "by default" in note)
    assert note.startswith("words: ") and '"exclude": True' in note
    assert note in str(result)
