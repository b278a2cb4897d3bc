"""Programs that write, read and count: each ran unchanged, and its numbers are right."""

import csv

import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional as F


def smallest(score, count):
    return score.argsort()[:count].sort().values


def rows(weight):
    return (weight == 0).flatten(1).all(1).nonzero().flatten()


def fake_quantize(x, low, high, bits=8):
    """Round to an unsigned grid with a zero point, as the paper of QAT has it."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (2**bits - 1)
    zero = round(-low / scale)
    return ((x / scale).round() + zero).clamp(0, 2**bits - 1).sub(zero) * scale


def test_v19_files(program):
    ran = program("v19_files")
    assert ran["same"]
    for name in ("conv1", "conv2"):
        mask, weight = ran["masks"][name], ran["before"][f"{name}.weight"]
        gone = smallest(ran["model"].state_dict()[f"{name}.weight"].abs().sum((1, 2, 3)), 4)
        assert torch.equal(rows(mask["weight"]), gone)
        assert torch.equal(getattr(ran["other"], name).weight, weight * mask["weight"])
        bias = ran["before"][f"{name}.bias"] * mask["bias"]
        assert torch.equal(getattr(ran["other"], name).bias, bias)
    # Half of the filters are masked: 36 and 288 weights at 36 and 16 positions, and 1280.
    assert ran["flops"] == 36 * 36 + 288 * 16 + 1280
    assert ran["params"] == 80 + 584 + 1290


def test_v20_calibration(program):
    ran = program("v20_calibration")
    config = ran["calibration_config"]
    assert set(config["conv1"]) >= {
        *("weight_bits", "weight_scale", "weight_zero_point"),
        *("input_bits", "tracked_min_input", "tracked_max_input"),
    }
    assert set(config["fc"]) >= {"output_bits", "tracked_min_output", "tracked_max_output"}
    ends = {"min": torch.Tensor.amin, "max": torch.Tensor.amax}
    for name, end in ends.items():  # the moving average of what was seen
        first, *others = [data for data, _ in ran["batches"](4)]
        tracked = end(first)
        for data in others:
            tracked = 0.99 * tracked + 0.01 * end(data)
        torch.testing.assert_close(torch.tensor(config["conv1"][f"tracked_{name}_input"]), tracked)
    weight = ran["model"].conv1.weight.detach()
    low, high = float(weight.min().clamp(max=0)), float(weight.max().clamp(min=0))
    torch.testing.assert_close(config["conv1"]["weight_scale"], torch.tensor([(high - low) / 255]))
    assert config["conv1"]["weight_zero_point"] == round(-low / (high - low) * 255)
    assert torch.nn.Conv2d in ran["kinds"]  # exporting has left a plain model
    assert not torch.equal(ran["plain"], ran["before"])
    torch.testing.assert_close(ran["after"], ran["before"], rtol=0, atol=0)


def test_v24_observer(program):
    ran = program("v24_observer")
    config, data = ran["calibration_config"], ran["data"]
    model, x = ran["model"], data[0]
    entry = config["conv1"]
    seen = torch.cat(data)
    assert float(seen.min()) <= entry["tracked_min_input"] <= 0 < entry["tracked_max_input"]
    given = fake_quantize(x, entry["tracked_min_input"], entry["tracked_max_input"])
    scale = model.conv1.weight.abs().max() / 127
    torch.testing.assert_close(entry["weight_scale"], scale.reshape(1))
    first = F.conv2d(given, (model.conv1.weight / scale).round() * scale, model.conv1.bias)
    given = fake_quantize(
        torch.relu(model.bn1(first)),
        config["conv2"]["tracked_min_input"],
        config["conv2"]["tracked_max_input"],
    )
    scales = {n: float(config[n]["weight_scale"]) for n in ("conv2", "fc")}
    weight = {n: (getattr(model, n).weight / s).round() * s for n, s in scales.items()}
    second = torch.relu(model.bn2(F.conv2d(given, weight["conv2"], model.conv2.bias)))
    expected = F.linear(second.flatten(1), weight["fc"], model.fc.bias)
    # One step of a grid may fall the other way where a number lies between two of them.
    assert (ran["quantized"] - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.slow
def test_v24_tensorrt(program, caplog):
    ran = program("v24_tensorrt")
    floats = ran["floats"]
    assert (ran["output"] - floats).abs().max() < 0.1 * floats.abs().max()
    file = onnxruntime.InferenceSession("trt_model.onnx", providers=["CPUExecutionProvider"])
    (output,) = file.run(None, {file.get_inputs()[0].name: ran["x"].numpy()})
    assert torch.equal(ran["output"], torch.from_numpy(output))
    nodes = {x.name: x for x in onnx.load("trt_model.onnx").graph.initializer}
    zeros = [onnx.numpy_helper.to_array(x) for name, x in nodes.items() if "zero_point" in name]
    assert all(x.dtype == "int8" and not x.any() for x in zeros)  # what TensorRT takes
    kinds = [x.op_type for x in onnx.load("trt_model.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == 2
    assert "trtexec --onnx=trt_model.onnx" in caplog.text


def test_v210_flops(program, capsys):
    ran = program("v210_flops")
    layers = {"conv1": 8 * 9 * 36, "conv2": 8 * 8 * 9 * 16, "fc": 128 * 10}
    flops, params, results = ran["before"]
    assert {row["name"]: row["flops"] for row in results} == layers
    assert (flops, params) == (sum(layers.values()), 80 + 584 + 1290) == (13088, 1954)  # NNI 2.10.1
    assert results[0] == {
        "name": "conv1",
        "input_size": (1, 1, 8, 8),
        "output_size": (1, 8, 6, 6),
        "module_type": "Conv2d",
        "flops": 2592,
        "params": 80,
        "weight_shape": (8, 1, 3, 3),
    }
    biases = 8 * 36 + 8 * 16 + 10
    norms = 2 * (8 * 36 + 8 * 16)
    assert ran["full"][:2] == (flops + biases + norms, params + 32) == (14346, 1986)
    assert ran["custom"][:2] == (flops + 14, params)
    assert ran["masked"][0] == flops - layers["conv1"] // 2
    assert ran["after"][0] == layers["conv1"] // 2 + layers["conv2"] // 2 + layers["fc"]
    assert ran["after"][1] == 40 + (4 * 8 * 9 + 8) + 1290
    printed = capsys.readouterr().out
    titles = ["Index", "Name", "Type", "Weight Shape", "Input Size", "Output Size"]
    head = [cell.strip() for cell in printed.splitlines()[1].strip("|").split("|")]
    assert head == [*titles, "FLOPs", "#Params"]
    assert f"FLOPs total: {flops}\n#Params total: {params}\n" in printed


def test_v210_dependency(program):
    ran = program("v210_dependency")
    alone = [{"conv2"}, {"left"}, {"right"}, {"grouped"}, {"fc"}]
    assert ran["channel_depen"].dependency_sets == [{"conv1", "conv3"}, *alone]
    with open("dependency.csv", newline="") as file:
        assert list(csv.reader(file))[:3] == [
            ["Dependency Set", "Layers"],
            ["Set 1", "conv1", "conv3"],
            ["Set 2", "conv2"],
        ]
    divisible = {"left": 2, "right": 2, "grouped": 2}
    expected = {"conv1": 1, "conv2": 1, "conv3": 1, **divisible}
    assert ran["group_depen"].dependency == expected
    assert ran["unsafe"] == []
    gone = {"conv1": [1, 2], "conv3": [1, 2], "conv2": [5], "grouped": [0, 6]}
    for name, mask in ran["fixed_mask"].items():
        assert rows(mask["weight"]).tolist() == gone[name]
        assert (mask["bias"] == 0).nonzero().flatten().tolist() == gone[name]
    assert rows(ran["masks"]["conv1"]["weight"]).tolist() == [0, 1, 2]  # as it was


def test_v30_speedup(program, caplog):
    ran = program("v30_speedup")
    assert ran["unchanged"].conv.out_channels == 8
    assert "the model is unchanged" in caplog.text
    gone = smallest(ran["weight"].abs().sum((1, 2, 3)), 4)
    assert torch.equal(rows(ran["masks"]["conv"]["weight"]), gone)
    assert ran["same"] is ran["model"]
    both = [i for i in gone.tolist() if i + 4 in gone]  # what both groups of the next layer lose
    kept = 8 - 2 * len(both)
    assert (ran["model"].conv.out_channels, ran["model"].up.in_channels) == (kept, kept)
    decoder = ran["decoder"]
    assert (decoder.up.out_channels, decoder.head.in_channels) == (6, 6)
    assert decoder.up.weight.shape == (8, 3, 2, 2)
    torch.testing.assert_close(decoder(ran["dummy_input"]), ran["reference"])
