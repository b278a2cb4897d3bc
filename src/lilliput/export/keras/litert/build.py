"""From a traced function to an integer LiteRT model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lilliput.errors import ExportError
from lilliput.export.keras.litert.biases import pull_biases
from lilliput.export.keras.litert.draft import Draft
from lilliput.export.keras.litert.fuse import fuse, store_weights
from lilliput.export.keras.litert.marks import replace_marks
from lilliput.export.keras.litert.propagate import propagate, quantized_to
from lilliput.export.keras.litert.schema import schema
from lilliput.export.keras.litert.weights import Found, Known, find_weights
from lilliput.frameworks.exporting.simulation import Mark, Simulation


def build(
    data: bytes, marks: Sequence[Mark], simulation: Simulation, known: Sequence[Known]
) -> tuple[Draft, dict[int, Found]]:
    """Return the file as a graph that uses integers where possible, and its weights."""
    draft = Draft.read(data)
    replace_marks(draft, marks, simulation)
    pull_biases(draft)
    weights = find_weights(draft, known)
    changed = True
    while changed:
        changed = propagate(draft)
        changed |= fuse(draft, weights)
    store_weights(draft, weights)
    draft.sweep()
    return draft, weights


def name_ends(draft: Draft, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name the inputs and outputs of the file, so that it can be called by name."""
    signature = schema().SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
    signature.inputs = [_named(draft, *x) for x in zip(draft.graph.inputs, inputs, strict=True)]
    signature.outputs = [_named(draft, *x) for x in zip(draft.graph.outputs, outputs, strict=True)]
    draft.model.signatureDefs = [signature]


def _named(draft: Draft, index: int, name: str) -> Any:
    entry = schema().TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), index
    draft.tensor(index).name = name.encode()
    return entry


def integer_ends(draft: Draft, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Let the file accept and return int8, as it uses internally."""
    for number, index in enumerate(draft.graph.inputs):
        if draft.dtype(index) != "float32":
            continue
        if quantized_to(draft, index) is None:
            raise ExportError(
                f"input {inputs[number]!r} is read in floating point, so the file cannot accept int8; "
                "quantize the 'input' of the layers that read it, or pass io='float'."
            )
        readers = draft.readers(index)
        for reader in readers:
            draft.replace(reader.outputs[0], readers[0].outputs[0])
        draft.graph.inputs[number] = readers[0].outputs[0]
    for number, index in enumerate(draft.graph.outputs):
        source = draft.source(index)
        if draft.dtype(index) == "float32" and source is None:
            raise ExportError(
                f"output {outputs[number]!r} is not quantized, so the file cannot return int8; "
                "quantize the 'output' of the last layer, or pass io='float'."
            )
        draft.graph.outputs[number] = index if source is None else source
    _drop_makers(draft)
    draft.sweep()


def _drop_makers(draft: Draft) -> None:
    """Remove the operators that produced tensors which are now inputs."""
    draft.graph.operators = [
        x for x in draft.operators if not set(x.outputs) & set(draft.graph.inputs)
    ]


def serialize(draft: Draft) -> bytes:
    """Return the bytes of the file, without traces of the conversion."""
    import flatbuffers

    _drop_unused(draft)
    draft.model.description = b"lilliput"
    builder = flatbuffers.Builder(1024)
    builder.Finish(draft.model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _drop_unused(draft: Draft) -> None:
    """Drop unused tensors, buffers and operator codes."""
    model, graph = draft.model, draft.graph
    used = {*graph.inputs, *graph.outputs}
    for operator in graph.operators:
        used |= {x for x in (*operator.inputs, *operator.outputs) if x >= 0}
        used |= {
            int(x) for x in (operator.intermediates if operator.intermediates is not None else ())
        }
    order = {old: new for new, old in enumerate(sorted(used))}
    graph.tensors = [graph.tensors[old] for old in sorted(used)]
    for operator in graph.operators:
        operator.inputs = [order.get(x, -1) for x in operator.inputs]
        operator.outputs = [order[x] for x in operator.outputs]
        if operator.intermediates is not None:
            operator.intermediates = [order[int(x)] for x in operator.intermediates]
    graph.inputs, graph.outputs = ([order[x] for x in xs] for xs in (graph.inputs, graph.outputs))
    for signature in model.signatureDefs or ():
        for entry in (*signature.inputs, *signature.outputs):
            entry.tensorIndex = order[entry.tensorIndex]
    draft.tensors = {key: order[x] for key, x in draft.tensors.items()}
    _drop_buffers(model)
    codes = sorted({x.opcodeIndex for g in model.subgraphs for x in g.operators})
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            operator.opcodeIndex = codes.index(operator.opcodeIndex)
    model.operatorCodes = [model.operatorCodes[x] for x in codes]


def _drop_buffers(model: Any) -> None:
    model.metadata, model.metadataBuffer = None, None
    used = {0, *(tensor.buffer for graph in model.subgraphs for tensor in graph.tensors)}
    order = {old: new for new, old in enumerate(sorted(used))}
    model.buffers = [model.buffers[old] for old in sorted(used)]
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = order[tensor.buffer]
