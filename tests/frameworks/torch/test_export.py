import sys

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lilliput.errors import ExportError, MissingExtraError, StageError
from lilliput.torch import LevelPruner, NaiveQuantizer, Quantizer


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


@pytest.fixture
def pruned():
    model = make_model().eval()
    pruner = LevelPruner(model, [{"sparsity": 0.75}])
    pruner.compress()
    return pruner


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_exported_weights_load_into_the_plain_model_and_give_its_outputs(
    pruned, tmp_path, suffix
):
    path, masks = tmp_path / f"model{suffix}", tmp_path / f"masks{suffix}"
    pruned.export_model(str(path), str(masks))
    load = load_file if suffix == ".safetensors" else (lambda p: torch.load(p, weights_only=True))
    plain = make_model().eval()
    plain.load_state_dict(load(path))
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(plain(x), pruned.bound_model(x))
    assert sorted(load(masks)) == ["0.weight_mask", "4.weight_mask"]
    assert pruned.is_wrapped


def test_the_onnx_file_runs_in_onnx_runtime_with_the_masked_outputs(pruned, tmp_path):
    path = tmp_path / "model.onnx"
    pruned.export_model(str(tmp_path / "m.pth"), onnx_path=str(path), input_shape=(2, 1, 6, 6))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = torch.randn(2, 1, 6, 6)
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(out), pruned.bound_model(x).detach(), rtol=1e-5, atol=1e-6
    )


def test_quantized_weights_are_exported_as_they_are_simulated(tmp_path):
    model = make_model().eval()
    quantizer = NaiveQuantizer(model, [{"quant_bits": 3}])
    quantizer.compress()
    quantizer.export_model(str(tmp_path / "m.safetensors"))
    plain = make_model().eval()
    plain.load_state_dict(load_file(tmp_path / "m.safetensors"))
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(plain(x), model(x))
    assert len(plain[4].weight.unique()) <= 7


def test_quantized_activations_are_refused_by_layer(tmp_path):
    class Outputs(Quantizer):
        def quantize_output(self, output, wrapper, **kwargs):
            return output.round()

    quantizer = Outputs(make_model(), [{"op_names": ["4"], "quant_types": ["output"]}])
    quantizer.compress()
    with pytest.raises(ExportError, match="layer '4' has quantized activations"):
        quantizer.export_model(str(tmp_path / "m.pth"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_suffix_and_a_missing_shape_are_refused(pruned, tmp_path):
    with pytest.raises(ExportError, match=r"\.safetensors, \.pt or \.pth"):
        pruned.export_model(str(tmp_path / "model.h5"))
    with pytest.raises(ExportError, match="input_shape"):
        pruned.export_model(str(tmp_path / "m.pth"), onnx_path=str(tmp_path / "m.onnx"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_onnx_package_is_said_in_one_line(pruned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lilliput\[onnx\]'"):
        pruned.export_model(str(tmp_path / "m.pth"), onnx_path="x.onnx", input_shape=(1, 1, 6, 6))


def test_a_module_used_twice_is_exported_the_same_under_both_names(tmp_path):
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    quantizer = NaiveQuantizer(model, [{"quant_bits": 2}])
    quantizer.compress()
    quantizer.export_model(str(tmp_path / "m.pth"))
    state = torch.load(tmp_path / "m.pth", weights_only=True)
    assert torch.equal(state["0.weight"], state["2.weight"])
    assert len(state["2.weight"].unique()) <= 3


def test_everything_done_to_the_model_is_exported_whoever_did_it(tmp_path):
    model = make_model().eval()
    pruner = LevelPruner(model, [{"op_names": ["0"], "sparsity": 0.5}])
    pruner.compress()
    NaiveQuantizer(model, [{"op_names": ["4"], "quant_bits": 2}]).compress()
    pruner.export_model(str(tmp_path / "m.safetensors"))
    plain = make_model().eval()
    plain.load_state_dict(load_file(tmp_path / "m.safetensors"))
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(plain(x), model(x))


def test_exporting_works_after_strip_and_is_refused_before_compress(tmp_path):
    pruner = LevelPruner(make_model(), [{"sparsity": 0.5}])
    with pytest.raises(StageError, match=r"before compress\(\)"):
        pruner.export_model(str(tmp_path / "m.pth"))
    pruner.compress()
    model = pruner.strip()
    pruner.export_model(str(tmp_path / "m.pth"))
    state = torch.load(tmp_path / "m.pth", weights_only=True)
    assert torch.equal(state["4.weight"], model[4].weight)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_path": "masks.h5"}, "masks.h5: expected a name ending in"),
        ({"mask_path": "model.pth"}, "must be different files"),
        ({"onnx_path": "no/such/folder/m.onnx", "input_shape": (1, 1, 6, 6)}, "does not exist"),
        ({"onnx_path": "m.onnx", "input_shape": (1, 3, 7, 7)}, "could not trace"),
        ({"model_path": "."}, "is a folder"),
        ({"model_path": 5}, "expected a string"),
    ],
)
def test_nothing_is_written_unless_everything_can_be(pruned, tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=words):
        pruned.export_model(**{"model_path": "model.pth", **changes})
    assert list(tmp_path.iterdir()) == []


def test_masks_of_every_pruner_on_the_model_are_exported(tmp_path):
    model = make_model()
    LevelPruner(model, [{"op_names": ["0"], "sparsity": 0.5}]).compress()
    quantizer = NaiveQuantizer(model, [{"op_names": ["4"], "quant_bits": 4}])
    quantizer.compress()
    quantizer.export_model(str(tmp_path / "m.pth"), str(tmp_path / "masks.pth"))
    assert list(torch.load(tmp_path / "masks.pth", weights_only=True)) == ["0.weight_mask"]
    alone = NaiveQuantizer(make_model(), [{"quant_bits": 4}])
    alone.compress()
    with pytest.raises(ExportError, match="no pruner is attached"):
        alone.export_model(str(tmp_path / "n.pth"), str(tmp_path / "o.pth"))
