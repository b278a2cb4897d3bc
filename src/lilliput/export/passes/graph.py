"""Small edits of an ONNX graph: read and add constants, insert nodes, remove dead ones."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from lilliput.frameworks.exporting.simulation import Placement
from lilliput.graph.onnx_macs import MACS

if TYPE_CHECKING:
    from lilliput.frameworks.exporting.sizes import OpenSizes

SCOPES = "pkg.torch.onnx.name_scopes"
OWN_SCOPES = "lilliput.name_scopes"
_SLICE = re.compile(r"\.slice\((-?\w+), (-?\w+), (-?\w+)\)\.(\d+)")

# Nodes that multiply by weights, or two activations: those with integer kernels.
LAYERS = frozenset(MACS)
CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators
_OWN_ATTENTION = (CONTRIB, "Attention")  # a different operator than that of ONNX


@dataclass(eq=False)
class Draft:
    """An ONNX model under construction.

    Parameters
    ----------
    model : onnx_ir.Model
        The graph that the passes edit.
    placements : list of Placement
        The placements of the ``Mark`` nodes.
    tensors : dict
        From (placement, position, call) to the tensor of the quantized activation in the file.
    notes : list of str
        Notes for the user.
    sizes : OpenSizes, optional
        The dynamic sizes of the trace, and those for which it is valid; None if unknown.
    traced : onnx_ir.Model, optional
        A copy of the trace, before the passes.
    limits : dict
        The largest accepted value of a dynamic size, by name, if one was found.
    """

    model: ir.Model
    placements: list[Placement]
    tensors: dict[tuple[int, int, int], ir.Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sizes: OpenSizes | None = None
    traced: ir.Model | None = None
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    def constant(self, array: Any, name: str, dtype: ir.DataType | None = None) -> ir.Value:
        """Add an initializer, or reuse an equal one of the same name."""
        tensor = ir.tensor(np.asarray(array), dtype=dtype)
        chosen, number = name, 1
        while (held := self.graph.initializers.get(chosen)) is not None or chosen in self._names():
            if held is not None and _is_equal(held.const_value, tensor):
                return held
            chosen, number = f"{name}_{number}", number + 1
        value = ir.val(chosen, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        like: ir.Value,
        dtype: ir.DataType | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Value:
        """Insert a node before another, and return its first output."""
        node = ir.node(op_type, inputs, attributes or {}, domain=domain, num_outputs=outputs)
        self.model.opset_imports.setdefault(domain, 1)
        scopes = before.metadata_props.get(OWN_SCOPES) or before.metadata_props.get(SCOPES)
        if scopes is not None:
            node.metadata_props[SCOPES] = scopes
        self.graph.insert_before(before, node)
        output = node.outputs[0]
        output.shape = like.shape
        output.type = ir.TensorType(dtype or like.dtype or ir.DataType.FLOAT)
        return output

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Redirect all readers of one tensor to another, including model outputs."""
        if old.is_graph_output():
            name, old.name = old.name, f"{old.name}_inner"
            if new.is_graph_output() or new.is_graph_input() or new.is_initializer():
                copied = ir.node("Identity", [new])
                self.graph.append(copied)
                copied.outputs[0].shape, copied.outputs[0].type = new.shape, new.type
                copied.outputs[0].name = name
                _replace_output(self.graph, old, copied.outputs[0])
            else:
                new.name = name
                _replace_output(self.graph, old, new)
        old.replace_all_uses_with(new)
        for key, value in self.tensors.items():
            if value is old:
                self.tensors[key] = new

    def sweep(self) -> None:
        """Remove unused nodes and initializers."""
        outputs = set(self.graph.outputs)
        for node in reversed(list(self.graph)):
            if not any(x.uses() or x in outputs for x in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and value not in outputs:
                del self.graph.initializers[name]
        alive = {id(value) for node in self.graph for value in node.outputs}
        self.tensors = {k: v for k, v in self.tensors.items() if id(v) in alive}

    def tidy(self, outputs: Sequence[str]) -> None:
        """Name the outputs, and remove traces of the export, such as paths of source files."""
        taken = {value.name for value in (*self.graph.inputs, *self.graph.initializers.values())}
        if len(outputs) == len(self.graph.outputs):
            for value in [value for node in self.graph for value in node.outputs]:
                if value.name in outputs:
                    value.name = f"{value.name}_inner"
            for value, name in zip(self.graph.outputs, outputs, strict=True):
                if not value.is_graph_input() and name not in taken:
                    taken.add(name)
                    value.name = name
        for node in self.graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        self.model.metadata_props.clear()
        self.graph.metadata_props.clear()
        self.model.producer_name = "lilliput"

    def _names(self) -> set[str | None]:
        return {value.name for value in self.graph.inputs}


def _replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    for i, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[i] = new


def _is_equal(held: Any, tensor: Any) -> bool:
    if held is None or held.dtype != tensor.dtype or tuple(held.shape) != tuple(tensor.shape):
        return False
    return bool(held.tobytes() == tensor.tobytes())


def array_of(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Return the content of a constant, or None if the value is computed."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that produces a value, if it is of a type."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def bounds_of(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds within which a node does not change its input, or None if it is not a clip."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip":
        return None
    ends = [-math.inf, math.inf]
    for i, value in enumerate(node.inputs[1:3]):
        found = array_of(value)
        if value is not None and found is None:
            return None
        ends[i] = ends[i] if found is None else float(found)
    return ends[0], ends[1]


def integer_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an attribute of a node."""
    found = node.attributes.get(name)
    return default if found is None else int(found.as_int())


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only node that reads a value, or None if there are others or the model returns it."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def layers_of(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes that are layers; an Einsum of one tensor only moves and adds its numbers."""
    for node in graph:
        is_known = node.domain in ("", CONTRIB) and len(node.inputs) > 1
        if node.op_type in LAYERS and is_known and (node.domain, node.op_type) != _OWN_ATTENTION:
            yield node


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of a node as plain values."""
    return {name: attribute.value for name, attribute in node.attributes.items()}


def path_of(node: ir.Node) -> str:
    """Return the path of the module that a node was traced from, empty at the top."""
    text = node.metadata_props.get(OWN_SCOPES) or node.metadata_props.get(SCOPES) or "[]"
    scopes: list[str] = ast.literal_eval(text)
    return _SLICE.sub(_unsliced, scopes[-2]) if len(scopes) > 1 else ""


def _unsliced(match: re.Match[str]) -> str:
    """Return ``.2`` for ``.slice(None, 6, None).2``, torch's name in a loop over part of a module list."""
    start, stop, step = (None if x == "None" else int(x) for x in match.groups()[:3])
    if (start or 0) >= 0 and (step or 1) > 0:
        return f".{(start or 0) + int(match[4]) * (step or 1)}"
    ends = ":".join("" if x is None else str(x) for x in (start, stop, step)).removesuffix(":")
    return f"[{ends}].{match[4]}"


def keep_scopes(graph: ir.Graph) -> None:
    """Record the modules of layers, before optimizations fuse them and name them after a batch norm."""
    for node in graph:
        if node.op_type in LAYERS and SCOPES in node.metadata_props:
            node.metadata_props[OWN_SCOPES] = node.metadata_props[SCOPES]


def rename_sizes(graph: ir.Graph, names: Mapping[str, str]) -> None:
    """Rename dynamic sizes, also where other sizes are computed from them."""
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(re.escape(x) for x in names)})\b")
    values = {x for node in graph for x in (*node.inputs, *node.outputs) if x is not None}
    for value in (*values, *graph.inputs):
        if value.shape is None or value.shape.is_static():
            continue
        dims = [
            d if isinstance(d, int) else pattern.sub(lambda m: names[m[0]], str(d.value))
            for d in value.shape
        ]
        value.shape = ir.Shape([None if d == "None" else d for d in dims])


def name_nodes(graph: ir.Graph) -> None:
    """Name every node after its module, layers by the module's path alone."""
    taken: set[str] = set()
    nodes = sorted(graph, key=lambda node: node.op_type not in LAYERS)  # layers first
    for node in nodes:
        path = path_of(node)
        plain = path if path and node.op_type in LAYERS else f"{path}/{node.op_type}".lstrip("/")
        name, number = plain, 1
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        taken.add(name)
        node.name = name
