"""The whole way: models of several kinds, executed; and what is refused."""

import json

import numpy as np
import onnx
import pytest
import torch
from fixed_quantizer import ALL, constants, execute, export, operators, quantized, rule
from torch import nn
from torch.nn import functional as F

from lilliput.errors import ExportError, LilliputError, StageError
from lilliput.export import export_onnx
from lilliput.torch import LevelPruner, NaiveQuantizer


class Residual(nn.Module):
    """Conv, norm, ReLU, pooling, conv and norm, and a depthwise conv added to it."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1, self.relu1, self.pool = nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm2 = nn.BatchNorm2d(8)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.relu2 = nn.ReLU()

    def forward(self, x):
        x = self.pool(self.relu1(self.norm1(self.conv1(x))))
        return self.relu2(self.conv3(x) + self.norm2(self.conv2(x)))


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    torch.manual_seed(1)
    model, x = Residual(), torch.randn(2, 3, 12, 12)
    for norm in (model.norm1, model.norm2):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.running_mean)
    rules = [
        rule(["weight", "input"], op_names=["conv1", "conv2"]),
        rule(op_names=["conv3"]),
        rule(["output"], op_names=["relu1", "norm2", "relu2"]),
    ]
    folder = tmp_path_factory.mktemp("residual")
    quantizer = quantized(model, x, rules)
    model.train()
    result, graph = export(quantizer, folder, x)
    return quantizer, model, x, result, graph


def test_residual_network_runs_on_integers_within_one_step(residual):
    result, graph = residual[3:]
    assert result.runtimes["onnxruntime"].lsb <= 1.001
    assert result.runtimes["onnxruntime_unoptimized"].lsb <= 1.001
    kernels = {layer.name: layer.kernel for layer in result.layers}
    assert kernels == dict.fromkeys(("conv1", "conv2", "conv3"), "QLinearConv")
    assert result.integer_share == 1 and result.notes == []
    assert not {"BatchNormalization", "Clip"} & set(operators(graph))


def test_export_leaves_modes_as_they_were(residual):
    assert all(module.training for module in residual[1].modules())


def test_costs_are_those_of_one_example(residual):
    macs = {layer.name: layer.macs for layer in residual[3].layers}
    assert macs == {"conv1": 144 * 8 * 27, "conv2": 36 * 8 * 36, "conv3": 36 * 8 * 9}


def test_nothing_is_quantized_twice(residual):
    # input, relu1, pool, conv3, norm2 and relu2: inputs of conv2 and conv3 are those of the pool
    assert operators(residual[4]).count("QuantizeLinear") == 6


def test_any_batch_size_runs(residual):
    model, result = residual[1], residual[3]
    for size in (1, 5):
        batch = torch.randn(size, 3, 12, 12)
        with torch.no_grad():
            model.eval()
            expected = model(batch).numpy()
            model.train()
        received = execute(result.path, batch.numpy())[0]
        assert received.shape == expected.shape
        assert np.abs(received - expected).max() < 0.2 * np.abs(expected).max()


def test_layers_are_compared_on_demand(residual):
    rows = residual[3].compare_layers()
    assert [(row["layer"], row["tensor"]) for row in rows][:2] == [
        ("conv1", "input"),
        ("relu1", "output"),
    ]
    assert all(row["sqnr"] > 40 and row["lsb"] <= 1.001 for row in rows)
    plain = residual[3].compare_layers("onnxruntime_unoptimized")
    assert len(plain) == len(rows)


def test_result_prints_and_is_plain_data(residual):
    result = residual[3]
    assert "3 of 3 layers run on integers, 100.0% of the multiplications" in str(result)
    data = json.loads(json.dumps(result.to_dict()))
    assert data["bytes"] == result.path.stat().st_size
    assert data["layers"][0]["kernel"] == "QLinearConv"


def test_file_says_nothing_of_the_machine(residual):
    text = residual[3].path.read_bytes()
    assert b"site-packages" not in text and b"tests/export" not in text


def test_file_is_about_a_quarter_of_the_float_one(tmp_path):
    model, x = (
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)),
        torch.randn(2, 256),
    )
    plain, _ = export(model, tmp_path, x)
    small, _ = export(quantized(model, x), tmp_path, x)
    assert plain.layers[0].reason == "its weight is not quantized"
    assert 3.5 < plain.bytes / small.bytes < 4


def test_masks_are_zeros_among_the_integers(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 16)), torch.randn(2, 32)
    pruner = LevelPruner(model, [{"sparsity": 0.75}])
    pruner.compress()
    quantizer = quantized(model, x)
    quantizer.keeps_zero = False  # the engine masks once more behind the quantizer
    _, graph = export(quantizer, tmp_path, x)
    found = constants(graph)
    assert (found["0.weight_quantized"][1] == 0).mean() >= 0.75
    assert "Mul" not in operators(graph)
    assert not any("mask" in name for name in found)


def test_masks_without_a_quantizer_are_in_the_file(tmp_path):
    model, x = nn.Sequential(nn.Linear(300, 200)), torch.randn(2, 300)
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    result, graph = export(pruner, tmp_path, x)
    assert result.runtimes["onnxruntime"].sqnr > 100
    assert "Mul" not in operators(graph)
    (weight,) = (array for _, array in constants(graph).values() if array.ndim == 2)
    assert (weight == 0).mean() >= 0.5


def test_algorithm_without_a_grid_is_exported_as_floats(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    quantizer = NaiveQuantizer(model, [{"quant_bits": 4}])
    quantizer.compress()
    if quantizer.qparams(quantizer.get_modules_wrapper()[0], "weight") is not None:
        pytest.skip("this algorithm has a grid by now")
    result, _ = export(quantizer, tmp_path, x)
    assert result.runtimes["onnxruntime"].sqnr > 100


class Shared(nn.Module):
    """One layer called twice, and one whose weight is another's."""

    def __init__(self):
        super().__init__()
        self.twice, self.tied = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.tied.weight = self.twice.weight

    def forward(self, x, scale=None):
        x = F.relu(self.twice(x))
        x = self.tied(F.relu(self.twice(x)))
        return x if scale is None else {"first": x, "second": x * scale}


def test_shared_weights_are_stored_once(tmp_path):
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(3, 8)
    result, graph = export(quantized(model, x), tmp_path, x)
    found = constants(graph)
    assert [name for name, (_, array) in found.items() if array.ndim == 2] == [
        "twice.weight_quantized"
    ]
    assert [layer.name for layer in result.layers] == ["twice", "twice_1", "tied"]
    assert [layer.kernel for layer in result.layers] == ["QGemm"] * 3
    assert result.runtimes["onnxruntime"].lsb <= 1.001
    calls = [row["call"] for row in result.compare_layers() if row["tensor"] == "output"]
    assert calls.count(1) >= 1


def test_named_inputs_and_two_outputs(tmp_path):
    torch.manual_seed(0)
    model, x = Shared(), {"x": torch.randn(3, 8), "scale": torch.rand(3, 1)}
    result, graph = export(quantized(model, x), tmp_path, x)
    assert [value.name for value in graph.input] == ["x", "scale"]
    assert [value.name for value in graph.output] == ["first", "second"]
    feeds = {"x": torch.randn(5, 8).numpy(), "scale": np.ones((5, 1), np.float32)}
    first, second = execute(result.path, feeds)
    assert np.array_equal(first, second)


def test_fixed_batch_and_batch_of_one(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(1, 8)
    quantizer = quantized(model, x)
    result, graph = export(quantizer, tmp_path, x)
    assert execute(result.path, np.zeros((7, 8), np.float32))[0].shape == (7, 4)
    _, graph = export(quantizer, tmp_path, x, dynamic_batch=False)
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_more_batches_are_compared(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    batches = [(torch.randn(3, 8), torch.zeros(3)), torch.randn(4, 8)]
    result, _ = export(quantized(model, x), tmp_path, x, calibration=batches)
    assert result.runtimes["onnxruntime"].sqnr > 30


def test_unchecked_file_is_written_without_running_it(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    result, _ = export(quantized(model, x), tmp_path, x, check=False)
    assert result.runtimes == {} and result.layers[0].weight_dtype == "int8"
    assert result.compare_layers() == []


# -- what is refused ---------------------------------------------------------------------------------


def refuse(folder, model, x, *words, error=ExportError, name="model.onnx", **settings):
    with pytest.raises(error) as caught:
        export_onnx(model, folder / name, x, **settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert list(folder.iterdir()) == []


def test_bad_calls_are_refused_and_leave_no_file(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    quantizer = quantized(model, x)
    refuse(tmp_path, model, x, "onnxruntim", "Did you mean 'onnxruntime'?", target="onnxruntim")
    refuse(tmp_path, model, x, "opset", opset=13)
    refuse(tmp_path, model, x, "ending in .onnx", name="model.pt")
    refuse(tmp_path, model, x, "folder that does not exist", name="missing/model.onnx")
    refuse(tmp_path, "model", x, "received str, expected a compressor")
    refuse(tmp_path, model, 3, "expected the model's arguments", error=LilliputError)
    refuse(tmp_path, model, torch.randn(2, 9), "does not run on the example inputs")
    quantizer.strip()
    refuse(tmp_path, quantizer, x, "call compress() before")


def test_missing_ranges_are_refused(tmp_path):
    class Uncalibrated(NaiveQuantizer):
        def qparams(self, wrapper, quant_type):
            raise StageError("calibrate() first.")

    quantizer = Uncalibrated(nn.Sequential(nn.Linear(8, 4)), [{"quant_bits": 4}])
    quantizer.compress()
    refuse(tmp_path, quantizer, torch.randn(2, 8), "calibrate", error=StageError)


class Untraceable(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        if self.kind == "branch":
            return x if x.sum() > 0 else -x
        return torch.special.bessel_j0(x)


def test_models_that_torch_cannot_write_are_refused(tmp_path):
    x = torch.randn(2, 8)
    model = Untraceable("branch").train()
    refuse(tmp_path, model, x, "torch cannot write Untraceable as ONNX")
    assert model.training
    refuse(tmp_path, Untraceable("op"), x, "bessel_j0 has no ONNX form")


def test_weight_off_its_grid_is_refused(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    quantizer = quantized(model, x)
    quantizer._calls = None
    quantizer.quantize_weight = lambda weight, wrapper, **kwargs: weight
    refuse(tmp_path, quantizer, x, "layer '0'", "not on the grid")


def test_file_that_differs_is_refused_with_the_layer(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(4, 8)
    quantizer = quantized(model, x, [rule(ALL, op_types=["Linear"])])
    quantizer._calls = None
    quantizer.quantize_output = lambda output, wrapper, **kwargs: output * 1.5
    refuse(tmp_path, quantizer, x, "onnxruntime_unoptimized", "dB", "output of layer")


def test_result_of_a_changed_model_cannot_be_compared(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    result, _ = export(quantized(model, x), tmp_path, x)
    with torch.no_grad():
        model[0].bias += 1
    with pytest.raises(StageError, match="changed"):
        result.compare_layers()


def test_opset_and_producer(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    export(quantized(model, x), tmp_path, x)
    proto = onnx.load(tmp_path / "model.onnx")
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 21}
    assert proto.producer_name == "lilliput"


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x) if x.shape[0] > 2 else -self.linear(x)


def test_a_model_that_takes_another_way_for_small_batches_is_refused(tmp_path):
    model, x = Branching(), torch.randn(4, 8)
    quantizer = quantized(model, x)
    with pytest.raises(ExportError, match=r"dynamic_batch=False"):
        export(quantizer, tmp_path, x)
    assert not list(tmp_path.iterdir())


def test_inputs_that_lead_to_nan_are_refused(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    quantizer = quantized(model, x)
    with pytest.raises(ExportError, match="NaN"):
        export(quantizer, tmp_path, torch.full((2, 8), torch.nan))


def test_a_second_quantizer_for_the_same_tensors_is_refused():
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    quantized(model, x)
    with pytest.raises(RuntimeError, match="already quantized by a FixedQuantizer"):
        quantized(model, x)
