"""Files of NNI's programs: any name, any path, safe to read, and masks that fit or are refused."""

import datetime
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.tools.filing import apply_compression_results, read_tensors, write_tensors
from lilliput.errors import ExportError, StageError, StateError

RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.fixture
def pruner():
    from nni.compression.torch import LevelPruner

    torch.manual_seed(0)
    pruner = LevelPruner(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, bias=False)), RULES)
    pruner.compress()
    return pruner


@pytest.mark.parametrize("name", ["masks", "masks.ckpt.best", "mask file.pth", "m.safetensors.old"])
@pytest.mark.parametrize("kind", [str, Path])
def test_files_may_have_any_name(pruner, tmp_path, name, kind):
    model, mask = kind(tmp_path / "model"), kind(tmp_path / name)
    pruner.export_model(model, mask)
    masks = torch.load(mask)
    assert {layer: {*held} for layer, held in masks.items()} == {
        "0": {"weight", "bias"},
        "1": {"weight", "bias"},
    }
    assert torch.equal(masks["0"]["bias"], torch.ones(4))  # not pruned
    assert masks["1"]["bias"] is None  # not there
    assert masks["0"]["weight"].dtype == torch.float32
    assert torch.equal(torch.load(model)["0.weight"] != 0, masks["0"]["weight"] != 0)


def test_a_folder_in_place_of_a_file_is_refused(pruner, tmp_path):
    with pytest.raises(ExportError, match="it is a folder; pass the path of a file"):
        pruner.export_model(tmp_path)
    with pytest.raises(ExportError, match="its folder does not exist"):
        pruner.export_model(tmp_path / "none" / "model.pth")
    with pytest.raises(ExportError, match="onnx_path needs input_shape"):
        pruner.export_model(tmp_path / "model.pth", onnx_path=tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_exporting_before_compressing_is_refused(tmp_path):
    from nni.compression.torch import LevelPruner, QAT_Quantizer

    with pytest.raises(StageError, match=r"export_model\(\) was called before compress"):
        LevelPruner(nn.Sequential(nn.Linear(2, 2)), RULES).export_model(tmp_path / "model")
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"]}]
    with pytest.raises(StageError, match=r"export_model\(\) was called before compress"):
        QAT_Quantizer(nn.Sequential(nn.Linear(2, 2)), rules).export_model(tmp_path / "model")


def test_masks_that_were_never_computed_are_not_exported(tmp_path):
    from nni.compression.torch import TaylorFOWeightFilterPruner

    model = nn.Sequential(nn.Conv2d(1, 4, 1))
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = TaylorFOWeightFilterPruner(model, rules, optimizer)
    pruner.compress()
    with pytest.raises(StageError, match="only ones"):
        pruner.export_model(tmp_path / "model", tmp_path / "mask")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before torch 1.6"])
def test_files_of_real_nni_are_read_without_unpickling(tmp_path, legacy):
    """NNI called torch.save on a dict; in its first years torch wrote no zip files."""
    path = tmp_path / "mask.pth"
    mask = torch.tensor([[1.0, 0.0]])
    held = {"0": {"weight": mask, "bias": None}}
    torch.save(held, path, _use_new_zipfile_serialization=not legacy)
    model = nn.Sequential(nn.Linear(2, 1))
    bias = model[0].bias.detach().clone()
    apply_compression_results(model, path, map_location="cpu")
    assert torch.equal(model[0].weight != 0, mask != 0)
    assert torch.equal(model[0].bias, bias)


def test_a_file_with_objects_in_it_is_refused(tmp_path):
    torch.save({"fc": datetime.timedelta(1)}, tmp_path / "mask.pth")
    with pytest.raises(StateError, match="no readable calibration config"):
        read_tensors(tmp_path / "mask.pth", "calibration config")
    (tmp_path / "text").write_text("not a file of torch")
    with pytest.raises(StateError, match="no readable masks"):
        apply_compression_results(nn.Linear(2, 1), tmp_path / "text")
    write_tensors([1], tmp_path / "list")
    with pytest.raises(StateError, match="received a list, expected a mapping"):
        read_tensors(tmp_path / "list", "calibration config")


def test_masks_of_another_model_are_refused_and_change_nothing():
    model = nn.Sequential(nn.Linear(2, 1))
    before = model[0].weight.detach().clone()
    faults = r"'fc.weight' is not a parameter.*\n.*'0.weight': received \(2, 2\), expected \(1, 2\)"
    with pytest.raises(StateError, match=faults):
        masks = {"fc": {"weight": torch.ones(1, 2)}, "0": {"weight": torch.zeros(2, 2)}}
        apply_compression_results(model, masks)
    assert torch.equal(model[0].weight, before)


def test_pruned_weights_are_counted_along_a_dimension(pruner, caplog):
    caplog.set_level("INFO", "lilliput")
    mask = pruner.get_modules_wrapper()[1].weight_mask
    columns = int((mask.sum(0) > 0).sum())
    assert pruner.get_pruned_weights(dim=1)["1"] == (columns, 4)
    assert f"simulated prune 1 remain/total: {columns}/4" in caplog.text
