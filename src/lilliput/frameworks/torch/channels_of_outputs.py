"""The axis of channels in the output of a layer: from its type, or from those of the layers around it."""

from __future__ import annotations

from torch import nn

_FIRST = {  # by the number of axes of their outputs
    3: (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d),
    4: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d),
    5: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d),
}
_LAST = (nn.Embedding, nn.RMSNorm, nn.MultiheadAttention, nn.RNNBase)


def channel_axis(model: nn.Module, module: nn.Module, rank: int) -> int | None:
    """Return the axis of channels of a module's output with ``rank`` axes; None if it is ambiguous.

    An activation or a block has it where all layers inside have it, or else all layers of the model.
    """
    if rank == 2:
        return 1
    own = _own_axis(module, rank)
    if own is not None:
        return own
    for part in (module, model):
        layers = [m for m in part.modules() if not isinstance(m, nn.Linear)]
        found = {_own_axis(m, rank) for m in layers} - {None}
        if not found:  # heads are linear in all kinds of models, so they count only if alone
            found = {_own_axis(m, rank) for m in part.modules()} - {None}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _own_axis(module: nn.Module, rank: int) -> int | None:
    """Return the axis that the type of a module tells."""
    if isinstance(module, (*_FIRST.get(rank, ()), nn.SyncBatchNorm, nn.GroupNorm)):
        return 1
    is_layer_norm = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1
    if is_layer_norm or isinstance(module, (*_LAST, nn.Linear, nn.Bilinear)):
        return rank - 1
    return None
