"""Which quantizers a file has around clips, as the graph of its nodes shows."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from fixed_quantizer import export
from torch import nn

from lilliput.export.passes.graph import Draft
from lilliput.export.passes.propagate import drop_idle_clips
from lilliput.torch import LSQQuantizer, PTQQuantizer, QATQuantizer


class Block(nn.Module):
    """A residual block whose clips are functions or one module that is called twice."""

    def __init__(self, clip):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.clip, self.head = clip, nn.Linear(4, 3)

    def forward(self, x):
        x = self.clip(self.c1(x))
        return self.head(self.clip(self.c2(x) + x).mean((2, 3)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return nn.functional.relu(self.norm(self.conv(x))).mean((2, 3))


NETWORKS = {
    "functional": lambda: Block(nn.functional.relu),
    "in place": lambda: Block(nn.functional.relu_),
    "shared module": lambda: Block(nn.ReLU()),
    "shared relu6": lambda: Block(nn.ReLU6()),
    "functional relu6": lambda: Block(nn.functional.relu6),
    "last": Last,
}


def quantized(name, quantizer, **settings):
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that clips cut something off on both sides
    x = torch.randn(8, 4, 8, 8)
    rules = [{"op_types": ["Conv2d", "Linear"], **settings}]
    made = quantizer(model, rules, example_inputs=x)
    made.compress()
    if quantizer is PTQQuantizer:
        made.calibrate([x])
    else:
        model.train()(x)
        model.eval()
    return made, x


def chain(graph, op_type):
    """Return what follows the first node of a kind, as long as there is one reader."""
    node = next(node for node in graph.node if node.op_type == op_type)
    found = [op_type]
    while True:
        readers = [x for x in graph.node if node.output[0] in x.input]
        if len(readers) != 1:
            return found
        node = readers[0]
        found.append(node.op_type)
        if node.op_type == "DequantizeLinear":
            return found


@pytest.mark.parametrize(
    "quantizer",
    [
        PTQQuantizer,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (QATQuantizer, LSQQuantizer)),
    ],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_layer_is_quantized_once_behind_its_clip(tmp_path, name, quantizer):
    made, x = quantized(name, quantizer)
    result, graph = export(made, tmp_path, x)
    assert all(layer.integer for layer in result.layers)
    clips = [node.op_type for node in graph.node if node.op_type in ("Relu", "Clip")]
    if quantizer is LSQQuantizer and "relu6" in name:
        return  # a learned grid may reach beyond six: it is quantized before and after
    assert len(clips) == (1 if name == "last" or "relu6" in name else 2)
    is_cut_by_rounding = "relu6" in name  # the last integer stands for six
    between = [] if is_cut_by_rounding else ["Relu"]
    assert chain(graph, "Conv")[:-1] == ["Conv", *between, "QuantizeLinear"]
    assert result.runtimes["onnxruntime"].local_lsb <= 1.001


@pytest.mark.parametrize("settings", [{"quant_bits": 4}, {"quant_dtype": "int"}])
def test_narrow_and_signed_grids_are_clipped_once_too(tmp_path, settings):
    settings = settings | {"quant_scheme": "symmetric"} if "quant_dtype" in settings else settings
    made, x = quantized("functional", PTQQuantizer, **settings)
    result, graph = export(made, tmp_path, x, target="generic")
    assert chain(graph, "Conv")[1] == "Relu"
    assert sum(node.op_type == "Relu" for node in graph.node) == 2
    assert result.runtimes["onnxruntime_unoptimized"].local_lsb <= 1.001


def draft_of(scale, zero, op_type, *ends):
    source = ir.val("x", ir.DataType.FLOAT, ir.Shape([4]))
    graph = ir.Graph([source], [], nodes=[], opset_imports={"": 21})
    draft = Draft(ir.Model(graph, ir_version=10), [])
    grid = [
        draft.constant(np.float32(scale), "scale"),
        draft.constant(np.asarray(zero, np.uint8), "zero"),
    ]
    quantize = ir.node("QuantizeLinear", [source, *grid])
    quantize.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
    back = ir.node("DequantizeLinear", [quantize.outputs[0], *grid])
    held = [draft.constant(np.float32(end), f"end{i}") for i, end in enumerate(ends)]
    clip = ir.node(op_type, [back.outputs[0], *held])
    graph.extend([quantize, back, clip])
    graph.outputs.append(clip.outputs[0])
    return draft


@pytest.mark.parametrize(
    ("scale", "zero", "clip", "is_idle"),
    [
        (0.1, 0, ("Relu",), True),
        (0.1, 1, ("Relu",), False),
        (6 / 255, 0, ("Clip", 0, 6), True),
        (6.1 / 255, 0, ("Clip", 0, 6), False),
        (0.01, 128, ("Clip", -2, 2), True),
        (0.01, 128, ("Clip", -1, 2), False),
    ],
)
def test_a_clip_goes_only_if_the_whole_grid_is_inside(scale, zero, clip, is_idle):
    draft = draft_of(scale, zero, *clip)
    drop_idle_clips(draft)
    assert (clip[0] not in [node.op_type for node in draft.graph]) == is_idle


def test_the_float_file_of_a_receipt_clips_no_more_often_than_the_model(tmp_path):
    import onnx

    made, x = quantized("functional", PTQQuantizer)
    result, _ = export(made, tmp_path, x)
    result._write_float(tmp_path / "float.onnx")
    nodes = onnx.load(tmp_path / "float.onnx").graph.node
    assert [node.op_type for node in nodes if node.op_type in ("Relu", "Clip")] == ["Relu"] * 2
