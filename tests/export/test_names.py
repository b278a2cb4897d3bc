"""Layers of a file are called as their modules are, and a result shows what a person wants to know."""

import pytest
import torch
from fixed_quantizer import quantized, rule
from torch import nn

from lilliput.export import export_onnx
from lilliput.torch import LevelPruner, PTQQuantizer


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.up, self.norm2 = nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d(8)
        self.head, self.norm3 = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.norm2(self.up(torch.relu(self.norm(self.conv(x)))))
        return self.norm3(self.head(x.mean((2, 3))))


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_layer_keeps_its_name_though_its_batch_norm_is_folded(tmp_path, is_pruned):
    model = Normed().eval()
    if is_pruned:
        LevelPruner(model, [{"sparsity": 0.5}]).compress()
    result = export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 3, 8, 8))
    assert [layer.name for layer in result.layers] == ["conv", "up", "head"]
    assert [layer.kernel for layer in result.layers] == ["Conv", "ConvTranspose", "Gemm"]


class Decoder(nn.Module):
    """As Hugging Face models go through their layers, in a way that torch traces by its compiler."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        for layer in self.layers[1:4]:
            x = layer(x).relu()
        return x


def test_layers_of_a_slice_have_their_own_names():
    from types import SimpleNamespace

    from lilliput.export.passes.graph import SCOPES, path_of

    def name(scope):
        return path_of(SimpleNamespace(metadata_props={SCOPES: repr(["", scope, "linear"])}))

    assert name("model.layers.slice(None, 6, None).0.q_proj") == "model.layers.0.q_proj"
    assert name("layers.slice(2, 6, None).3.q_proj") == "layers.5.q_proj"
    assert name("layers.slice(1, None, 2).2") == "layers.5"
    assert name("layers.slice(-3, None, None).1.q") == "layers[-3:].1.q"
    assert name("it's") == "it's"


def test_sliced_layers_are_exported_under_their_names(tmp_path):
    result = export_onnx(Decoder().eval(), tmp_path / "net.onnx", torch.randn(2, 8))
    assert [layer.name for layer in result.layers] == ["layers.1", "layers.2", "layers.3"]


def test_a_float_file_is_told_in_few_lines(tmp_path):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20))).eval()
    result = export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 8))
    assert "20 layers in float: nothing is quantized" in str(result)
    assert "its weight is not quantized" not in str(result) + result.table()
    assert len(str(result).splitlines()) <= 6
    assert len(result.table().splitlines()) == 21


def test_layers_in_float_are_listed_by_reason(tmp_path):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))).eval(), torch.randn(2, 8)
    quantizer = quantized(model, x, [rule(op_names=["0", "1"])])
    text = str(export_onnx(quantizer, tmp_path / "net.onnx", x))
    assert "2 of 12 layers run on integers, 16.7% of the multiplications" in text
    expected = "in float: 2, 3, 4, 5, 6, 7 and 4 more (83.3%): its weight is not quantized"
    assert expected in text


def test_a_result_is_short_in_a_notebook_and_escaped(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    result = export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 8))
    result.notes.append("<script>")
    assert repr(result).startswith("<ExportResult net.onnx: ") and len(repr(result)) < 200
    html = result._repr_html_()
    assert "<table>" in html and "&lt;script&gt;" in html and "<script>" not in html


def test_a_language_model_is_exported_with_its_default_config(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    weights = {"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_group"}
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"], **weights, "group_size": 32}])
    quantizer.compress()
    inputs = {"input_ids": torch.randint(0, 50, (2, 6))}
    result = export_onnx(quantizer, tmp_path / "net.onnx", inputs)
    assert model.config.use_cache is True
    assert any("config.use_cache = False" in note for note in result.notes)
    names = [layer.name for layer in result.layers]
    assert "model.layers.1.self_attn.q_proj" in names and "lm_head" in names
    assert not any("None" in name for name in names)
