"""190 exports, executed on inputs that nobody has seen: the simulation, or a refusal, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from export_models import SHAPES
from torch import nn

from lilliput.errors import LilliputError
from lilliput.torch import LevelPruner, PTQQuantizer, QATQuantizer, export_onnx

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow
MODES = ("float", "ptq8", "qat8", "mixed", "generic")
RULES = [{"op_types": ["default"]}]
EXACT, CLOSE = 80.0, 20.0  # dB: of a float file, and of one whose roundings may fall the other way
MOST_REFUSED = 24
refused: list[str] = []


def flat(output):
    values = output.values() if isinstance(output, dict) else output
    return list(values) if isinstance(output, (dict, tuple, list)) else [output]


def compressed(mode, model, make):
    """Return what to export: the model, or a quantizer at work on it."""
    if mode == "float":
        return model
    if mode == "qat8":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        quantizer = QATQuantizer(model.train(), RULES, optimizer, make(16))
        quantizer.compress()
        for _ in range(4):
            optimizer.zero_grad()
            sum(x.square().mean() for x in flat(model(*make(16)))).backward()
            optimizer.step()
        model.eval()
        return quantizer
    rules = list(RULES)
    if mode == "mixed":
        LevelPruner(model, [{"sparsity": 0.5}]).compress()
        layers = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        four = {"weight": 4, "input": 8, "output": 8}
        rules += [{"op_names": layers[:1], "quant_bits": four}] if layers else []
        rules += [{"op_names": layers[-1:], "exclude": True}] if len(layers) > 1 else []
    quantizer = PTQQuantizer(model, rules, example_inputs=make(16))
    quantizer.compress()
    quantizer.calibrate(
        [make(32)[0] for _ in range(2)] if len(make(1)) == 1 else [0], forward=runs(make)
    )
    return quantizer


def runs(make):
    return lambda model, batch: model(*make(32)) if isinstance(batch, int) else model(batch)


def session(path, is_optimized):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not is_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def agreement(expected, received):
    """Return the worst signal to noise ratio of all outputs, in dB."""
    found = []
    for one, two in zip(expected, received, strict=True):
        assert one.shape == two.shape
        noise, signal = float(((one - two) ** 2).sum()), float((one**2).sum())
        found.append(math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-30) / noise))
    return min(found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SHAPES)
def test_a_file_computes_what_the_model_does_or_is_refused(name, mode, tmp_path):
    torch.manual_seed(len(name))
    build, make = SHAPES[name]
    model = build()
    with torch.no_grad():
        for _ in range(3):
            model(*make(16))  # statistics of batch norms
    model.eval()
    target = "generic" if mode == "generic" else "onnxruntime"
    try:
        subject = compressed(mode, model, make)
        result = export_onnx(subject, tmp_path / "net.onnx", make(4), target, assume_vnni=False)
    except LilliputError as error:
        refused.append(f"{name} {mode}: {error}")
        assert not list(tmp_path.iterdir())
        return
    noted = any("executed by onnxruntime" in note for note in result.notes)
    for is_optimized in (False, True):
        if is_optimized and noted:
            continue  # the result says that the runtime's optimizations are off here
        runtime = session(result.path, is_optimized)
        names = [x.name for x in runtime.get_inputs()]
        for rows in (1, 3, 5):
            inputs = make(rows)
            with torch.no_grad():
                expected = [x.numpy().astype(np.float64) for x in flat(model(*inputs))]
            feeds = dict(zip(names, (x.numpy() for x in inputs), strict=True))
            received = [x.astype(np.float64) for x in runtime.run(None, feeds)]
            found = agreement(expected, received)
            assert found >= (EXACT if mode == "float" else CLOSE), (rows, is_optimized, found)


def test_few_are_refused():
    """Runs last: what was refused, with the reasons."""
    print(*refused, sep="\n")
    assert len(refused) <= MOST_REFUSED, refused
