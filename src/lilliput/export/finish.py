"""From a traced ONNX graph to the bytes of a file: all passes, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lilliput.errors import ExportError

if TYPE_CHECKING:
    from lilliput.export.graph import Draft


def finish(draft: Draft, target: str, outputs: Sequence[str]) -> Draft:
    """Put integers into a graph that has ``Site`` nodes where it is quantized."""
    from lilliput.export.bias import quantize_biases
    from lilliput.export.fold import fold_norms
    from lilliput.export.graph import name_nodes
    from lilliput.export.propagate import propagate
    from lilliput.export.sites import replace_sites
    from lilliput.export.targets import fit_target, prepare_target

    name_nodes(draft.graph)
    replace_sites(draft)
    fold_norms(draft)
    prepare_target(draft, target)
    if target != "generic":
        quantize_biases(draft)
    propagate(draft)
    fit_target(draft, target)
    name_nodes(draft.graph)
    draft.tidy(outputs)
    return draft


def serialize(draft: Draft) -> bytes:
    """Return the bytes of the file."""
    import onnx
    import onnx_ir

    try:
        proto = onnx_ir.serde.serialize_model(draft.model)
        onnx.checker.check_model(proto)
        data: bytes = proto.SerializeToString()
    except (ValueError, onnx.checker.ValidationError) as error:
        raise ExportError(f"the graph cannot be written as one ONNX file: {error}") from error
    return data
