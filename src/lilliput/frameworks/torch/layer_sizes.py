"""Size attributes of torch's own layers: update them to the shapes of their tensors."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


def fix_sizes(module: nn.Module) -> None:
    """Make a layer's attributes agree with the shapes of its tensors."""
    for name, value in sizes_of(module).items():
        setattr(module, name, value)


def sizes_of(module: Any) -> dict[str, Any]:
    """Return the size attributes that a layer should have; empty for modules that are not torch's own."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, _ConvTransposeNd):
        groups = weight.shape[0] if module.groups == module.in_channels else module.groups
        return {
            "in_channels": weight.shape[0],
            "groups": groups,
            "out_channels": weight.shape[1] * groups,
        }
    if isinstance(module, _ConvNd):
        groups = module.groups
        if groups > 1 and groups == module.in_channels:  # depthwise: one group per channel
            groups = weight.shape[0] // (module.out_channels // module.groups)
        return {
            "groups": groups,
            "in_channels": weight.shape[1] * groups,
            "out_channels": weight.shape[0],
        }
    if isinstance(module, nn.Linear):
        return {"out_features": weight.shape[0], "in_features": weight.shape[1]}
    if isinstance(module, _NormBase):
        held = weight if weight is not None else module.running_mean
        return {} if held is None else {"num_features": held.shape[0]}
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return {} if weight is None else {"normalized_shape": tuple(weight.shape)}
    if isinstance(module, nn.GroupNorm):
        if weight is None:
            return {}
        is_single = module.num_groups == module.num_channels
        groups = weight.shape[0] if is_single else module.num_groups
        return {"num_groups": groups, "num_channels": weight.shape[0]}
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return {"embedding_dim": weight.shape[1]}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": weight.shape[0]}
    if isinstance(module, nn.RNNBase):
        first, hidden = (getattr(module, f"weight_{x}_l0") for x in ("ih", "hh"))
        return {"input_size": first.shape[1], "hidden_size": hidden.shape[1]}
    if isinstance(module, nn.RNNCellBase):
        return {"input_size": module.weight_ih.shape[1], "hidden_size": module.weight_hh.shape[1]}
    if isinstance(module, nn.MultiheadAttention):
        return _attention(module)
    return {}


def _attention(module: Any) -> dict[str, Any]:
    width, inner = module.out_proj.weight.shape
    found = {"embed_dim": width, "num_heads": inner // module.head_dim}
    if module._qkv_same_embed_dim:
        return {**found, "kdim": width, "vdim": width}
    return {**found, "kdim": module.k_proj_weight.shape[1], "vdim": module.v_proj_weight.shape[1]}
