"""ModelSpeedup in NNI's forms: what it takes, what it leaves alone, what it says."""

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError, StageError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def masks_of(model):
    mask = torch.ones(8, 4)
    mask[[1, 6]] = 0
    return {"0": {"weight": mask, "bias": mask[:, 0].clone()}}


@pytest.mark.parametrize("way", ["v1", "v2.10", "v3", "file", "list", "dict"])
def test_every_form_of_the_call_cuts(way, tmp_path):
    from nni.compression.pytorch.speedup import ModelSpeedup

    model, x = net(), torch.randn(1, 4)
    masks, path = masks_of(model), tmp_path / "mask"
    torch.save(masks, path)
    expected = net()
    with torch.no_grad():
        expected[0].weight *= masks["0"]["weight"]
        expected[0].bias *= masks["0"]["bias"]
    calls = {
        "v1": lambda: ModelSpeedup(model, x, str(path), "cpu"),
        "v2.10": lambda: ModelSpeedup(model, x, masks, None, 0, 8),
        "v3": lambda: ModelSpeedup(model, x, masks_or_file=masks, batch_dim=0, batch_size=8),
        "file": lambda: ModelSpeedup(model, x, path, map_location="cpu", confidence=4),
        "list": lambda: ModelSpeedup(model, [x], masks),
        "dict": lambda: ModelSpeedup(model, {"input": x}, masks),
    }
    assert calls[way]().speedup_model() is model
    assert (model[0].out_features, model[2].in_features) == (6, 6)
    torch.testing.assert_close(model(x), expected(x))
    assert not model[0].training  # NNI left replaced modules in training mode


def test_a_batch_in_another_dimension_is_doubled_there():
    from lilliput.compat.nni.tools.speedup import at_least_two

    sequence = torch.randn(5, 1, 4)
    assert at_least_two(sequence, 1).shape == (5, 2, 4)
    assert at_least_two(sequence, 0) is sequence
    assert at_least_two({"x": torch.randn(1, 3), "n": 2})["n"] == 2


def test_replacers_are_not_called_and_a_note_says_why(caplog):
    from nni.compression.pytorch.speedup import ModelSpeedup

    def never(module, masks):
        raise AssertionError

    model = net()
    speedup = ModelSpeedup(
        model, torch.randn(2, 4), masks_of(model), customized_replace_func={"Linear": never}
    )
    assert "customized_replace_func (str) is not called" in caplog.text
    assert speedup.speedup_model()[0].out_features == 6


def test_a_call_without_masks_is_refused():
    from nni.compression.pytorch.speedup import ModelSpeedup

    with pytest.raises(ConfigError, match="masks_file is missing"):
        ModelSpeedup(net(), torch.randn(1, 4))


def test_fine_grained_masks_leave_the_model_as_it_is(caplog):
    from nni.compression.torch import LevelPruner, ModelSpeedup

    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 64)).eval()
    pruner = LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.3}])
    pruner.compress()
    before = model(torch.ones(1, 64))
    speedup = ModelSpeedup(model, torch.randn(1, 64), pruner.get_masks())
    assert speedup.speedup_model() is model
    assert "the model is unchanged: there is nothing to cut" in caplog.text
    assert model[0].out_features == 8
    assert torch.equal(model(torch.ones(1, 64)), before)


def test_tensorrt_is_explained(tmp_path, caplog):
    from nni.compression.quantization_speedup import ModelSpeedupTensorRT

    with pytest.raises(ConfigError, match="input_shape: received 4, expected a tuple"):
        ModelSpeedupTensorRT(net(), 4)
    engine = ModelSpeedupTensorRT(net(), (1, 4), onnx_path=tmp_path / "m.onnx")
    with pytest.raises(StageError, match="trtexec --onnx="):
        engine.export_quantized_model(tmp_path / "engine")
