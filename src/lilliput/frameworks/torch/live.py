"""Keep the norms of a masked model in step with its masks."""

from __future__ import annotations

from typing import Any

import torch

from lilliput.frameworks.torch.dead import zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.norms import narrow_norms
from lilliput.frameworks.torch.sidecar import mask_of
from lilliput.graph.cuts import balance
from lilliput.graph.dead import find_dead


def narrow_live(pruner: Any) -> None:
    """Let each norm of a pruner's model see the channels that masks keep, and no others."""
    layout, model = pruner.layout, unwrapped(pruner.bound_model)
    analysis = getattr(layout.groups, "analysis", None)
    if analysis is None or not analysis.walk.statistics:
        return
    masks = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path, _, leaf = name.rpartition(".")
        mask = mask_of(model.get_submodule(path), leaf)
        masks[name] = torch.ones(()).expand(parameter.shape) if mask is None else mask
    flags = balance(analysis, layout.groups.flags(find_dead(layout.groups, zeros_in(masks))))
    for path, narrow in narrow_norms(analysis, model, flags).items():
        set_narrow(model.get_submodule(path), narrow)
