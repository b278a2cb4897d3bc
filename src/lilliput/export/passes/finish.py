"""From a traced ONNX graph to the graph of a file: all passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.frameworks.exporting.simulation import DOMAIN

if TYPE_CHECKING:
    from lilliput.export.passes.graph import Draft


def finish(draft: Draft, target: str, outputs: Sequence[str]) -> Draft:
    """Replace the ``Mark`` nodes of a graph by integer quantization."""
    from lilliput.export.passes.bias import quantize_biases
    from lilliput.export.passes.fit import fit_target, prepare_target
    from lilliput.export.passes.fold import fold_norms
    from lilliput.export.passes.graph import name_nodes
    from lilliput.export.passes.marks import replace_marks
    from lilliput.export.passes.propagate import drop_idle_clips, propagate

    draft.traced = draft.model.clone()
    name_nodes(draft.graph)
    replace_marks(draft)
    drop_idle_clips(draft)
    fold_norms(draft)
    prepare_target(draft, target)
    if target != "generic":
        quantize_biases(draft)
    propagate(draft)
    fit_target(draft, target)
    name_nodes(draft.graph)
    draft.tidy(outputs)
    return draft


def write_float(
    traced: Any, target: str, outputs: Sequence[str], path: Path, pack: Any = None
) -> None:
    """Write a trace as a file without quantization, to compare a quantized file with."""
    from lilliput.export.packed import packing
    from lilliput.export.passes.graph import Draft

    draft = Draft(traced.clone(), [])
    for node in [node for node in draft.graph if node.domain == DOMAIN]:
        if node.inputs[0] is not None:
            draft.replace(node.outputs[0], node.inputs[0])
    draft.sweep()
    draft.model.opset_imports.pop(DOMAIN, None)
    with (pack or packing)(finish(draft, target, outputs).model, path) as data:
        data.write(path)
