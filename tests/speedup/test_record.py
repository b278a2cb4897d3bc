"""One recorded run tells what torch.export would: the same operators, in the same modules."""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.capture import Exported, capture, read
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.graph import to_graph
from lilliput.frameworks.torch.nodes import module_path, op_name, place, shape_of
from lilliput.frameworks.torch.record import Recorder, Unrecorded
from lilliput.graph.collect import find_groups
from lilliput.torch import L1NormPruner, speedup

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from zoo import ZOO

QUICK = ("bilstm", "shufflenet_v1", "unet_transposed", "vit_fused_qkv")
READABLE = [name for name in ZOO if name != "nn_transformer_reads_mask"]


def operators(graph):
    calls = [node for node in graph.nodes if hasattr(node.target, "_schema")]
    return [
        (op_name(node).removesuffix("_copy"), module_path(node), shapes(node.meta["val"]))
        for node in calls
        if "sym_size" not in op_name(node)
    ]


def shapes(value):
    found = value if isinstance(value, (list, tuple)) else [value]
    return [shape_of(x) for x in found if isinstance(x, torch.Tensor)]


def groups_of(captured, model):
    found = find_groups(to_graph(captured))
    groups = sorted(
        (group.size, sorted((x.tensor, x.dim, x.is_output) for x in group.slices))
        for group in found.groups
    )
    return groups, sorted((x.tensor, x.dim) for x in found.pinned), found.unreached


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in READABLE]
)
def test_the_groups_are_those_that_torch_export_leads_to(name):
    model, (args, kwargs) = ZOO[name].build(), as_inputs(ZOO[name].inputs())
    plain = plain_copy(model)
    recorded = read(plain, args, kwargs)
    exported = capture(plain, args, kwargs)
    assert not isinstance(recorded, Exported)
    assert operators(recorded.graph) == operators(exported.graph)
    assert groups_of(recorded, plain) == groups_of(exported, plain)
    assert recorded.parameters == exported.parameters
    assert recorded.simple == exported.simple


def test_what_is_computed_at_once_is_one_operator():
    """In inference mode torch takes attention and the like apart only after they were recorded."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    names = [x for x, _, _ in operators(read(layer, (torch.randn(2, 3, 8),), {}).graph)]
    assert "scaled_dot_product_attention" in names
    assert names.count("layer_norm") == 2
    assert names.count("linear") == 4


class Deciding(nn.Module):
    """Its code looks at the numbers that the first layer has computed."""

    def __init__(self, look):
        super().__init__()
        self.first, self.second, self.look = nn.Linear(6, 8), nn.Linear(8, 2), look

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden if self.look(hidden) else -hidden)


LOOKS = {
    "if": lambda x: x.sum() > 0,
    "item": lambda x: x.max().item() > 0,
    "tolist": lambda x: x[0].tolist()[0] > 0,
    "numpy": lambda x: x.detach().numpy()[0, 0] > 0,
    "equal": lambda x: torch.equal(x, x + 1),
    "index": lambda x: len(x[x > 0]),
    "masked_select": lambda x: len(x.masked_select(x > 0)),
    "tensor": lambda x: torch.tensor([x.mean()])[0] > 0,
    "one_hot": lambda x: nn.functional.one_hot((x > 0).long()).shape[-1] > 1,
    "chance": lambda x: torch.rand(()) > 0.5,
    "where": lambda x: len(torch.where(x > 0)[0]),
    "nonzero": lambda x: len(x.nonzero()),
    "unique": lambda x: len(x.unique()),
    "repeated": lambda x: len(x.repeat_interleave((x[:, 0] > 0).long(), 0)),
}


@pytest.mark.parametrize("how", LOOKS)
def test_a_run_that_depends_on_numbers_is_not_taken_for_all_runs(how):
    model = Deciding(LOOKS[how]).eval()
    x = torch.randn(4, 6)
    recorder = Recorder(dict(model.named_parameters()))
    with pytest.raises(Unrecorded, match="numbers in tensors"):
        recorder.run(model, (x,), {})
    with pytest.raises(UnsupportedModelError, match=r"torch\.export|depend on its data"):
        L1NormPruner(model, [{"sparsity": 0.5}], example_inputs=x).compress()


def swallowed(x):
    try:
        return x.sum() > 0
    except Exception:
        return True


def test_a_model_that_catches_all_errors_cannot_hide_what_it_looks_at():
    model = Deciding(swallowed).eval()
    with pytest.raises(Unrecorded, match="is_nonzero|reads numbers"):
        Recorder(dict(model.named_parameters())).run(model, (torch.randn(4, 6),), {})


class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor


@dataclass
class Found:
    logits: torch.Tensor
    boxes: Boxes


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.box = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.body(x if isinstance(x, torch.Tensor) else x.tensor).relu()
        return Found(self.classes(hidden), Boxes(self.box(hidden)))


@dataclass
class Packed:
    tensor: torch.Tensor


@pytest.mark.parametrize(
    "inputs", [torch.randn(4, 6), (Boxes(torch.randn(4, 6)),), (Packed(torch.randn(4, 6)),)]
)
def test_tensors_in_objects_are_not_overlooked(inputs):
    with pytest.raises(UnsupportedModelError):
        L1NormPruner(Detector(), [{"sparsity": 0.5}], example_inputs=inputs)


@functools.lru_cache
def ramp(size):
    return torch.linspace(1, 2, size)


KEPT = {}


def test_what_code_keeps_outside_of_the_model_can_be_trained_with():
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            table = KEPT.setdefault("norms", self.first.weight.detach().abs().sum(1))
            return self.second(self.first(x) * ramp(8) * table)

    model, x = Outside().eval(), torch.randn(2, 4)
    read(plain_copy(model), (x,), {})
    model(x).sum().backward()


def test_a_tensor_made_of_another_past_all_operators_is_not_a_number_in_the_code():
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.second(nn.Parameter(self.first(x), requires_grad=False))

    model = Copying().eval()
    groups = find_groups(to_graph(read(model, (torch.randn(2, 4),), {}))).groups
    assert {x.tensor for x in groups[0].slices} == {"first.weight", "first.bias", "second.weight"}


def test_a_size_in_a_list_is_tried_too():
    class Listing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.sizes = nn.Linear(4, 16), nn.Linear(16, 2), [16]

        def forward(self, x):
            hidden = self.first(x)
            if list(hidden.shape[1:]) != self.sizes:
                raise ValueError("another size")
            return self.second(hidden)

    model, x = Listing(), torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=x).compress()
    assert speedup(model, x).model.sizes == [8]


def test_numbers_that_the_code_made_itself_may_decide():
    class Masking(Deciding):
        def forward(self, x):
            mask = torch.tril(torch.ones(len(x), len(x)))
            return self.second(self.first(x) if mask.sum() > 1 else x)

    model, x = Masking(None).eval(), torch.randn(4, 6)
    assert not isinstance(read(model, (x,), {}), Exported)


class Odd(nn.Module):
    """Ways to a tensor that call no operator, or change one that was there."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x):
        x.mul_(2)
        self.count += 1
        hidden = self.first(x).relu_()
        hidden.data += 1 * torch.tensor(0.5)
        return {"out": self.third(nn.functional.linear(hidden.data, self.second.weight.data))}


def test_data_and_changes_in_place_are_followed():
    torch.manual_seed(0)
    model, x = Odd().eval(), torch.randn(4, 6)
    before = x.clone()
    captured = read(plain_copy(model), (x,), {})
    assert not isinstance(captured, Exported)
    assert torch.equal(x, before)
    names = [x for x, _, _ in operators(captured.graph)]
    assert "mul" in names
    groups = find_groups(to_graph(captured)).groups
    assert {s.tensor for g in groups for s in g.slices} >= {"second.weight", "third.weight"}


def test_nothing_of_the_run_stays():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.cache = nn.Linear(4, 4), {}

        def forward(self, x):
            if "table" not in self.cache:
                self.cache["table"] = self.layer.weight.abs()
            return self.layer(x) + self.cache["table"].sum(1)

    model, x = Keeping().eval(), torch.randn(2, 4)
    read(model, (x,), {})
    assert not model.cache
    assert not torch.compiler.is_compiling()
    assert not torch.nn.modules.module._has_any_global_hook()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(hasattr(p, "_lilliput_node") for p in model.parameters())
    model(x).sum().backward()  # no tensor of inference mode is left


def test_the_line_of_the_model_is_named():
    class Sorting(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, x):
            return self.part(x).sort(-1).values

    graph = read(Sorting().eval(), (torch.randn(2, 4),), {}).graph
    where = {op_name(node): place(node) for node in graph.nodes if hasattr(node.target, "_schema")}
    line = Sorting.forward.__code__.co_firstlineno + 1
    assert where == {
        "linear": f"part (test_record.py:{line})",
        "sort": f"the model (test_record.py:{line})",
    }


def test_a_model_that_does_not_like_to_be_watched_is_exported():
    class Shy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            if torch.is_inference_mode_enabled():
                raise RuntimeError("not now")
            return self.second(self.first(x))

    model, x = Shy(), torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=x).compress()
    assert speedup(model, x).model.first.out_features == 3
