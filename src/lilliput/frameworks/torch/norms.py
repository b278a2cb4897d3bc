"""How the norms of a masked torch model run on kept channels only."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import nn

from lilliput.frameworks.torch.attributes import find_attributes, set_attributes
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.cutting import apply_cuts
from lilliput.frameworks.torch.dead import zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.layer_sizes import fix_sizes
from lilliput.frameworks.torch.narrow import Keep, Narrow, keep_of
from lilliput.frameworks.torch.rewrite import find_edits
from lilliput.frameworks.torch.sidecar import mask_of, narrow_of
from lilliput.graph.analysis import Analysis
from lilliput.graph.cuts import balance, by_tensor, find_cuts
from lilliput.graph.dead import find_dead
from lilliput.graph.labels import Flags
from lilliput.graph.norms import find_norms
from lilliput.graph.walk import Value

# The removed classes and the norms that were set last, by pruner.
_narrowed: weakref.WeakKeyDictionary[Any, tuple[Flags, dict[str, Narrow | None]]] = (
    weakref.WeakKeyDictionary()
)


def narrow_norms(analysis: Analysis, model: nn.Module, removed: Flags) -> dict[str, Narrow | None]:
    """Return how each norm of a masked model has to run, None for those that use all channels."""
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
        fix_sizes(twin)
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
    """Return the kept indices along each dimension that loses some."""
    flags = [analysis.kept(value, d, removed) for d in range(len(value.shape))]
    return [keep_of(d, kept) for d, kept in enumerate(flags) if not kept.all()]


def narrow_to_masks(pruner: Any) -> None:
    """Restrict each norm of a pruner's model to the channels that masks keep."""
    layout, model = pruner.layout, unwrapped(pruner.bound_model)
    analysis = getattr(layout.groups, "analysis", None)
    if analysis is None or not analysis.walk.statistics:
        return
    masks = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path, _, leaf = name.rpartition(".")
        mask = mask_of(modules[path], leaf)
        masks[name] = torch.ones(()).expand(parameter.shape) if mask is None else mask
    flags = balance(analysis, layout.groups.flags(find_dead(layout.groups, zeros_in(masks))))
    if pruner in _narrowed:
        before, made = _narrowed[pruner]
        is_same = all(narrow_of(modules[path]) is x for path, x in made.items())
        if is_same and np.array_equal(flags, before):
            return  # they are as they should be
    made = narrow_norms(analysis, model, flags)
    for path, narrow in made.items():
        set_narrow(modules[path], narrow)
    _narrowed[pruner] = flags, made
