"""Above 2 GB weights lie in a second file; here the limit is lowered to some bytes."""

import numpy as np
import onnx
import pytest
import torch
from fixed_quantizer import execute, quantized
from torch import nn

from lilliput.errors import ExportError
from lilliput.export import export_onnx, packed
from lilliput.torch import PTQQuantizer, measure, open_file


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(packed, "_LARGEST", 5_000)


def files(folder):
    return sorted(x.name for x in folder.iterdir())


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)).eval(), torch.randn(4, 64)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_weights_lie_beside_the_file_and_are_found_again(tmp_path, small_limit, is_quantized):
    model, x = network()
    subject = quantized(model, x) if is_quantized else model
    result = export_onnx(subject, tmp_path / "net.onnx", x)
    (name,) = result.beside
    assert files(tmp_path) == sorted(["net.onnx", name])
    assert name.startswith("net.onnx.") and name.endswith(".data")
    assert result.bytes == sum((tmp_path / x).stat().st_size for x in ("net.onnx", name))
    onnx.checker.check_model(str(result.path), full_check=True)
    expected = model(x).detach().numpy()
    np.testing.assert_allclose(execute(result.path, x.numpy())[0], expected, atol=0.05)
    np.testing.assert_allclose(open_file(result.path)(x).numpy(), expected, atol=0.05)
    assert result.integer_share == is_quantized
    assert all(layer.kernel for layer in result.layers)
    assert len(result.compare_layers()) == (4 if is_quantized else 0)


def test_a_receipt_counts_both_files(tmp_path, small_limit):
    model, x = network()
    result = export_onnx(model, tmp_path / "net.onnx", x)
    figures = measure(result.path, x)
    assert figures.bytes == result.bytes and figures.parameters == 64 * 64 + 64 + 64 * 16 + 16
    assert result.receipt.after.bytes == result.bytes


def test_a_new_export_takes_the_old_weights_away(tmp_path, small_limit):
    model, x = network()
    first = export_onnx(model, tmp_path / "net.onnx", x)
    again = export_onnx(model, tmp_path / "net.onnx", x)
    assert again.beside == first.beside  # called after the content
    with torch.no_grad():
        model[0].weight += 1
    other = export_onnx(model, tmp_path / "net.onnx", x)
    assert other.beside != first.beside
    assert files(tmp_path) == sorted(["net.onnx", *other.beside])


def test_a_failed_write_leaves_the_old_pair(tmp_path, small_limit, monkeypatch):
    model, x = network()
    first = export_onnx(model, tmp_path / "net.onnx", x)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with torch.no_grad():
        model[0].weight += 1

    def full(path, data):
        raise OSError("no space left")

    monkeypatch.setattr(packed, "write_atomically", full)
    with pytest.raises(ExportError, match="cannot be written: no space left"):
        export_onnx(model, tmp_path / "net.onnx", x)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert first.beside[0] in before


def test_a_refused_file_leaves_nothing(tmp_path, small_limit):
    model, x = network()
    quantizer = quantized(model, x)
    quantizer._calls = None
    quantizer.quantize_output = lambda output, wrapper, **kwargs: output * 1.5
    with pytest.raises(ExportError, match="dB"):
        export_onnx(quantizer, tmp_path / "net.onnx", x)
    assert files(tmp_path) == []


def test_small_files_stay_one(tmp_path):
    model, x = network()
    result = export_onnx(model, tmp_path / "net.onnx", x)
    assert result.beside == [] and files(tmp_path) == ["net.onnx"]


def test_packed_weights_are_external_too(tmp_path, small_limit):
    model, x = network()
    rule = {"quant_types": ["weight"], "quant_bits": 8, "granularity": "per_group"}
    quantizer = PTQQuantizer(model, [{**rule, "group_size": 32}])
    quantizer.compress()
    result = export_onnx(quantizer, tmp_path / "net.onnx", x)
    assert [layer.kernel for layer in result.layers] == ["MatMulNBits"] * 2 and result.beside
