"""How the norms of a masked torch model run on the channels that masks keep, and no others."""

from __future__ import annotations

from torch import nn

from lilliput.frameworks.torch.attributes import find_attributes, set_attributes
from lilliput.frameworks.torch.capture import plain_copy
from lilliput.frameworks.torch.cutting import apply_cuts
from lilliput.frameworks.torch.leaf import fix_leaf
from lilliput.frameworks.torch.narrow import Keep, Narrow, keep_of
from lilliput.frameworks.torch.rewrite import find_edits
from lilliput.graph.analysis import Analysis
from lilliput.graph.cuts import by_tensor, find_cuts
from lilliput.graph.labels import Flags
from lilliput.graph.norms import find_norms
from lilliput.graph.walk import Value


def narrow_norms(analysis: Analysis, model: nn.Module, removed: Flags) -> dict[str, Narrow | None]:
    """Return how each norm of a masked model has to run, None for those that see all channels."""
    norms = find_norms(analysis)
    found: dict[str, Narrow | None] = dict.fromkeys((norm.path for norm in norms), None)
    cuts = find_cuts(analysis, removed)
    if not cuts:
        return found
    edits = find_edits(analysis, removed)
    attributes = find_attributes(model, edits)
    find = analysis.walk.labels.find
    for norm in norms:
        if not any(removed[find(column)].any() for column in norm.columns):
            continue
        prefix = f"{norm.path}."
        own = [cut.within(prefix) for cut in cuts if cut.tensor.startswith(prefix)]
        twin = plain_copy(model.get_submodule(norm.path))
        apply_cuts(twin, own)
        fix_leaf(twin)
        sizes = {("", name): x for (path, name), x in attributes.items() if path == norm.path}
        set_attributes(twin, sizes)
        parameters = {
            name: _kept_of(analysis, analysis.axes[prefix + name], removed)
            for name in by_tensor(own)
        }
        source, result = (_kept_of(analysis, x, removed) for x in (norm.source, norm.result))
        found[norm.path] = Narrow(twin, source, result, parameters)
    return found


def _kept_of(analysis: Analysis, value: Value, removed: Flags) -> list[Keep]:
    """Return what stays along each dimension that loses something."""
    flags = [analysis.kept(value, d, removed) for d in range(len(value.shape))]
    return [keep_of(d, kept) for d, kept in enumerate(flags) if not kept.all()]
