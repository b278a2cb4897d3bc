"""The check of each tensor on its own, the guard inside export_onnx, and layers that stay in float."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulation import saturated_layers
from torch import nn

from lilliput.errors import ExportError
from lilliput.export import check, onnx_file, stepwise
from lilliput.export.guard import cpu
from lilliput.export.packed import Packed, packing
from lilliput.export.run import Execute
from lilliput.export.steps import aligned
from lilliput.frameworks.torch.export.simulation import model_of, simulate
from lilliput.torch import LSQQuantizer, PTQQuantizer, QATQuantizer, QuantType, export_onnx

RUNTIMES = ("onnxruntime_unoptimized", "onnxruntime")
RULES = [{"op_types": ["Conv2d", "Linear"]}]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


def make(depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    model = nn.Sequential(*stem, *(Residual() for _ in range(depth)), *head)
    for _ in range(10):
        model(torch.randn(32, 3, 16, 16))
    return model.eval()


def batches(count: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(count)]


def calibrated(model: nn.Module, **rule: object) -> PTQQuantizer:
    quantizer = PTQQuantizer(model, [{**RULES[0], **rule}])
    quantizer.compress()
    quantizer.calibrate(batches())
    return quantizer


@pytest.mark.slow
def test_every_tensor_of_a_residual_net_is_within_one_step(tmp_path: Path) -> None:
    quantizer = calibrated(make())
    result = export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0])
    assert {
        name: found.local_lsb for name, found in result.runtimes.items() if found.local_lsb
    } == {
        name: pytest.approx(1, abs=0.01)
        for name, found in result.runtimes.items()
        if found.local_lsb
    }
    assert all(found.local_lsb is not None for found in result.runtimes.values())
    assert result.integer_share == 1
    assert all(layer.integer for layer in result.layers)


@pytest.mark.parametrize("cls", [QATQuantizer, LSQQuantizer])
def test_trained_quantizers_export_what_they_simulate(cls: type, tmp_path: Path) -> None:
    model = make(2).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = cls(model, RULES, optimizer, example_inputs=batches(1)[0])
    quantizer.compress()
    for batch in batches():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    result = export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0])
    assert result.runtimes["onnxruntime_unoptimized"].local_lsb <= 1.01
    assert result.integer_share == 1
    assert model.training


def test_a_wrong_integer_in_the_file_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantizer = calibrated(make(2))
    opened = stepwise.executor

    def spoiled(runtime: str, data: Packed) -> Execute:
        import onnx

        proto = onnx.load_from_string(data.graph)
        for constant in proto.graph.initializer:
            if constant.name.startswith("4.conv1.weight") and constant.data_type == 3:
                integers = onnx.numpy_helper.to_array(constant).copy()
                integers[5] = 127  # one filter
                constant.CopyFrom(onnx.numpy_helper.from_array(integers, constant.name))
                break
        else:
            raise KeyError([c.name for c in proto.graph.initializer])
        return opened(runtime, Packed(proto.SerializeToString()))

    monkeypatch.setattr(stepwise, "executor", spoiled)
    with pytest.raises(ExportError, match=r"layer '4\.conv[12]' as executed"):
        export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0])
    assert not list(tmp_path.iterdir())


def saturating() -> tuple[nn.Sequential, torch.Tensor]:
    """A layer whose weights and activations are all large: pairs of products exceed 16 bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].weight.fill_(0.5).add_(torch.rand(8, 16) * 0.01)
        model[2].weight.uniform_(-0.1, 0.1)
    return model.eval(), torch.full((4, 16), 0.9) + torch.rand(4, 16) * 0.1


def quantized_saturating() -> tuple[PTQQuantizer, torch.Tensor]:
    model, x = saturating()
    quantizer = PTQQuantizer(model, RULES)
    quantizer.compress()
    quantizer.calibrate([x])
    return quantizer, x


def test_a_file_for_cpus_without_vnni_does_not_saturate_there(tmp_path: Path) -> None:
    quantizer, x = quantized_saturating()
    result = export_onnx(quantizer, tmp_path / "net.onnx", x, assume_vnni=False)
    assert saturated_layers(result.path, x.numpy()) == []
    assert result.guarded[0].layer == "0"
    assert result.guarded[0].worst > 32767 >= result.guarded[0].worst_after
    assert result.runtimes["onnxruntime"].local_lsb <= 1.01
    assert "CPUs without VNNI (assume_vnni=False)" in str(result)
    assert "weights made coarser to avoid 16-bit saturation" in str(result)
    assert result.to_dict()["cpu"] == {"has_vnni": False, "is_this": False}
    assert "net.onnx is for CPUs without VNNI (assume_vnni=False)" in result.receipt.notes


def test_a_file_for_cpus_with_vnni_keeps_its_weights_and_says_where_it_would_saturate(
    tmp_path: Path,
) -> None:
    quantizer, x = quantized_saturating()
    before = quantizer.bound_model[0].weight.detach().clone()
    result = export_onnx(quantizer, tmp_path / "net.onnx", x, assume_vnni=True)
    assert torch.equal(quantizer.bound_model[0].weight, before)
    assert "0" in saturated_layers(result.path, x.numpy())
    assert "on CPUs without VNNI, 16-bit sums would saturate in layers 0" in str(result)


@pytest.mark.parametrize("has_vnni", [True, False])
def test_by_default_a_file_is_for_the_cpu_that_exports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_vnni: bool
) -> None:
    monkeypatch.setattr(cpu, "cpu_has_wide_dot", lambda: has_vnni)
    quantizer, x = quantized_saturating()
    result = export_onnx(quantizer, tmp_path / "net.onnx", x, check=False)
    assert result.cpu == cpu.Cpu(has_vnni, is_this=True)
    assert ("0" in saturated_layers(result.path, x.numpy())) is has_vnni
    word = "with" if has_vnni else "without"
    assert f"for onnxruntime, CPUs {word} VNNI (like this one)" in str(result)


def test_a_saturated_layer_is_refused_where_the_file_is_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CPU without VNNI computes is put in place of what this one does."""
    opened = stepwise.executor

    def saturated(runtime: str, data: Packed) -> Execute:
        execute = opened(runtime, data)
        if runtime != "onnxruntime":
            return execute
        return lambda feeds: [x // 2 if x.dtype == np.uint8 else x for x in execute(feeds)]

    monkeypatch.setattr(stepwise, "executor", saturated)
    monkeypatch.setattr(check, "cpu_has_wide_dot", lambda: False)
    quantizer, x = quantized_saturating()
    with pytest.raises(ExportError, match="as executed by onnxruntime is .* saturate"):
        export_onnx(quantizer, tmp_path / "net.onnx", x, assume_vnni=False)
    assert not list(tmp_path.iterdir())
    result = export_onnx(quantizer, tmp_path / "net.onnx", x, assume_vnni=True)
    assert any("as executed by onnxruntime is" in note for note in result.notes)


def test_the_guard_only_makes_scales_coarser() -> None:
    model, x = saturating()
    quantizer = PTQQuantizer(model, RULES)
    quantizer.compress()
    quantizer.calibrate([x])
    before = model[0].weight.detach().clone()
    quantizer.coarsen_weight(quantizer.get_modules_wrapper()[0], torch.tensor([2.0] + [1.0] * 7))
    after = model[0].weight.detach()
    assert torch.equal(after[1:], before[1:])
    step = quantizer.get_modules_wrapper()[0].weight.detach()[0].abs().max() / 127 * 2
    ratio = after[0] / step
    torch.testing.assert_close(ratio, ratio.round(), rtol=0, atol=1e-3)
    again = copy.deepcopy(quantizer.state())
    assert "weight_coarse" in again.tensors["0"]


def test_an_assumption_is_true_false_or_none(tmp_path: Path) -> None:
    quantizer = calibrated(make(1))
    with pytest.raises(ExportError, match="assume_vnni: received 'maybe'"):
        export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0], assume_vnni="maybe")  # type: ignore[arg-type]


def test_weights_only_in_blocks_run_as_matmulnbits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).eval()
    x = torch.randn(2, 5, 64)
    for bits, least in ((4, 5.0), (8, 2.8)):
        plain = export_onnx(model, tmp_path / "float.onnx", x)
        rule = {"quant_types": ["weight"], "quant_bits": bits, "granularity": "per_group"}
        quantizer = PTQQuantizer(model, [{**rule, "group_size": 32}])
        quantizer.compress()
        result = export_onnx(quantizer, tmp_path / "small.onnx", x)
        assert [layer.kernel for layer in result.layers] == ["MatMulNBits"] * 2
        weights = 4 * (64 * 96 + 96 * 32)
        assert (plain.bytes - result.bytes) > weights * (1 - 1 / least)
        exact = result.runtimes["onnxruntime_unoptimized"]
        assert exact.max_error < 1e-5  # what the file says is what was simulated
        quantizer.strip()


def test_export_before_calibration_is_refused(tmp_path: Path) -> None:
    quantizer = PTQQuantizer(make(1), RULES)
    quantizer.compress()
    with pytest.raises(RuntimeError, match=r"layer '0' is not known yet; call calibrate"):
        export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0])
    assert not list(tmp_path.iterdir())


def test_pruned_weights_are_zeros_in_the_file(tmp_path: Path) -> None:
    import onnx

    from lilliput.torch import LevelPruner

    model = make(1)
    LevelPruner(model, [{"op_types": ["Conv2d"], "sparsity": 0.6}]).compress()
    quantizer = calibrated(model)
    export_onnx(quantizer, tmp_path / "net.onnx", batches(1)[0])
    proto = onnx.load(tmp_path / "net.onnx")
    found = {c.name: onnx.numpy_helper.to_array(c) for c in proto.graph.initializer}
    weights = [array for name, array in found.items() if name.startswith("3.conv1.weight")]
    integers = next(array for array in weights if array.dtype == np.int8 and array.ndim == 4)
    masks = {m.name: m.weight_mask for m in model.modules() if hasattr(m, "weight_mask")}
    assert (integers[masks["3.conv1"].numpy() == 0] == 0).all()
    assert (integers == 0).mean() >= 0.6


def test_the_draft_can_be_built_without_a_file() -> None:
    quantizer = calibrated(make(1))
    simulation = simulate(model_of(quantizer), ((batches(1)[0],), {}))
    draft = onnx_file.build(simulation, "generic", 21)
    with packing(draft.model, Path("net.onnx")) as data:
        assert data.size > 1000


def test_rounding_by_the_runtime_is_noted_not_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).eval()
    rule = {"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_group"}
    quantizer = PTQQuantizer(model, [{**rule, "group_size": 32}])
    quantizer.compress()
    x = torch.randn(2, 5, 64)
    result = export_onnx(quantizer, tmp_path / "net.onnx", x, min_sqnr=90.0)
    assert (
        result.runtimes["onnxruntime"].sqnr < 90 < result.runtimes["onnxruntime_unoptimized"].sqnr
    )
    (note,) = [x for x in result.notes if "min_sqnr=90 dB" in x]
    assert "MatMulNBits kernel rounds activations to 8 bits" in note
    assert result.cpu is None  # no layer multiplies integers by integers


def test_what_differs_for_another_reason_is_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, run = nn.Sequential(nn.Linear(64, 64)).eval(), check.run

    def wrong(runtime: str, *args: object) -> list:  # type: ignore[type-arg]
        found = run(runtime, *args)  # type: ignore[arg-type]
        return found if runtime == "onnxruntime_unoptimized" else [[x * 1.1 for x in found[0]]]

    monkeypatch.setattr(check, "run", wrong)
    with pytest.raises(ExportError, match="20.0 dB .* expected min_sqnr=30 dB or more"):
        export_onnx(model, tmp_path / "net.onnx", torch.randn(2, 64))


class Sensitive(nn.Module):
    """A layer that changes nothing, and a function that turns one step into another number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(100 * self.layer(x))


def test_a_low_ratio_from_end_to_end_is_told_and_the_file_is_written(tmp_path: Path) -> None:
    model = Sensitive().eval()
    rules = [{"op_types": ["Linear"], "quant_types": ["input"], "observer": "minmax"}]
    quantizer = PTQQuantizer(model, rules)
    quantizer.compress()
    quantizer.calibrate([torch.linspace(0, 7.65, 8).reshape(1, 8)])
    scale = quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT).scale
    middles = (torch.arange(200) + 0.5) * scale  # where the last bit decides on a rounding
    is_open = (middles / scale).round() != (middles * scale.reciprocal()).round()
    x = torch.arange(800).remainder(200) * scale
    x[:800:50] = middles[is_open][:4].repeat(4)
    result = export_onnx(quantizer, tmp_path / "m.onnx", x.reshape(-1, 8))
    for found in result.runtimes.values():
        assert found.sqnr < 25 and found.local_lsb == 1
    assert result.path.exists()


def test_an_export_runs_each_batch_of_calibration_once(tmp_path: Path) -> None:
    quantizer = calibrated(make(1))
    runs: list[torch.Size] = []
    handle = quantizer.bound_model.register_forward_pre_hook(
        lambda _, args: runs.append(args[0].shape) if args[0].dtype == torch.float32 else None
    )
    result = export_onnx(quantizer, tmp_path / "model.onnx", batches()[0][:3])
    handle.remove()
    # Watched by the guard and compared with the file: the same run.
    assert runs.count(torch.Size([8, 3, 16, 16])) == len(batches())
    assert result.runtimes["onnxruntime"].sqnr > 40


def test_an_export_rounds_weights_once_for_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantizer = calibrated(make(1))
    rounded: Counter[str] = Counter()
    round_weight = PTQQuantizer._round_weight

    def noted(self: PTQQuantizer, weight: torch.Tensor, wrapper: Any) -> torch.Tensor:
        rounded[wrapper.name] += 1
        return round_weight(self, weight, wrapper)

    monkeypatch.setattr(PTQQuantizer, "_round_weight", noted)
    export_onnx(quantizer, tmp_path / "model.onnx", batches()[0][:3])
    # The model runs a dozen times; the others are for the guard and for what is stored.
    assert max(rounded.values()) <= 4


def test_weights_written_during_an_export_are_rounded_again() -> None:
    quantizer = calibrated(make(1))
    inputs = ((batches()[0],), {})
    simulation = simulate(quantizer.bound_model, inputs)
    before = simulation.again(inputs).outputs[0]
    with torch.no_grad():
        quantizer.get_modules_wrapper()[0].module.get_parameter("weight").mul_(0.5)
    after = simulation.again(inputs).outputs[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, simulate(quantizer.bound_model, inputs).outputs[0])


def test_a_tensor_is_aligned_by_the_first_order_within_one_step() -> None:
    expected = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    off = expected + 0.5
    assert np.array_equal(aligned(off, expected, step=0.5), off)
    assert np.array_equal(aligned(off.transpose(0, 2, 1), expected, step=0.5), off)
