"""Attention written in the different ways that people write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.registry import features, images, model, tokens


@model("nn_transformer", lambda: (torch.randn(2, 7, 48), torch.randn(2, 5, 48)))
class Seq2SeqTransformer(nn.Module):
    is_causal: bool | None = True

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Linear(48, 48), nn.Linear(48, 48)
        self.body = nn.Transformer(48, 4, 2, 2, 96, batch_first=True)
        self.head = nn.Linear(48, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        source, target = self.source(source), self.target(target)
        return self.head(self.body(source, target, tgt_mask=mask, tgt_is_causal=self.is_causal))


@model("nn_transformer_reads_mask", lambda: (torch.randn(2, 7, 48), torch.randn(2, 5, 48)))
class MaskReadingTransformer(Seq2SeqTransformer):
    """Does not export: torch looks at the values of the mask to find out whether it is causal."""

    is_causal = None


@model("nn_transformer_encoder", tokens(9, 60))
class TransformerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, activation="gelu", norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids).transpose(0, 1)).mean(0))


@model("multihead_attention", features(9, 24))
class MultiheadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 48)
        self.norm = nn.LayerNorm(48)
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(x.mean(1))


@model("cross_attention", lambda: (torch.randn(2, 5, 32), torch.randn(2, 9, 20)))
class CrossAttention(nn.Module):
    """nn.MultiheadAttention with keys and values of other widths, and its weights as an output."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 48)
        self.attention = nn.MultiheadAttention(48, 4, kdim=20, vdim=20, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.attention(self.query(x), memory, memory)
        return self.head(y), weights


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class ViTBlock(nn.Module):
    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.scale1 = nn.Parameter(torch.full((width,), 1e-6))
        self.scale2 = nn.Parameter(torch.full((width,), 1e-6))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1 * self.attention(self.norm1(x))
        return x + self.scale2 * self.mlp(self.norm2(x))


@model("vit_fused_qkv", images())
class ViT(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 17, width))
        self.blocks = nn.Sequential(*(ViTBlock(width, FusedAttention(width, 4)) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class WindowAttention(nn.Module):
    """Attention inside 4×4 windows, optionally shifted, with a table of relative biases."""

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.inner = FusedAttention(width, heads)
        self.shift = shift
        self.bias = nn.Parameter(torch.zeros(1, 16, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        side = int(length**0.5)
        x = x.view(batch, side, side, width)
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.view(batch, side // 4, 4, side // 4, 4, width).transpose(2, 3).reshape(-1, 16, width)
        x = self.inner(x + self.bias)
        x = x.view(batch, side // 4, side // 4, 4, 4, width).transpose(2, 3)
        x = x.reshape(batch, side, side, width)
        x = torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x
        return x.view(batch, length, width)


class PatchMerging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        side = int(length**0.5)
        x = x.view(batch, side, side, width)
        corners = [x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1).view(batch, -1, 4 * width)))


@model("swin_windows", images())
class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 2, 2)
        self.stages = nn.Sequential(
            ViTBlock(24, WindowAttention(24, 2, 0)),
            ViTBlock(24, WindowAttention(24, 2, 2)),
            PatchMerging(24),
            ViTBlock(48, WindowAttention(48, 4, 0)),
            ViTBlock(48, WindowAttention(48, 4, 2)),
        )
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.patch(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


@model("einsum_attention", features(9, 48))
class EinsumAttention(nn.Module):
    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.first = nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        batch, length, _ = x.shape
        q, k, v = (
            f(x).view(batch, length, self.heads, -1) for f in (self.to_q, self.to_k, self.to_v)
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.head(y.flatten(2) + x)


@model("linear_attention", features(12, 48))
class LinearAttention(nn.Module):
    """No softmax over positions: keys and values are multiplied first."""

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = k.transpose(-1, -2) @ v
        total = (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        y = (q @ context / total).transpose(1, 2).flatten(2)
        return self.head(x + self.out(y))


class RotaryAttention(nn.Module):
    """Grouped queries and rotary positions, as in Llama, on bare modules."""

    def __init__(self, width: int, heads: int, groups: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, head_dim
        self.wq = nn.Linear(width, heads * head_dim, bias=False)
        self.wk = nn.Linear(width, groups * head_dim, bias=False)
        self.wv = nn.Linear(width, groups * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, width, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)
        speeds = 100.0 ** -(torch.arange(self.head_dim // 2, dtype=x.dtype) / self.head_dim)
        angles = torch.outer(places, speeds)[None, :, None, :]
        left, right = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.rotate(self.wq(x).view(batch, length, self.heads, self.head_dim))
        k = self.rotate(self.wk(x).view(batch, length, self.groups, self.head_dim))
        v = self.wv(x).view(batch, length, self.groups, self.head_dim)
        k, v = (part.repeat_interleave(self.heads // self.groups, 2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


@model("tied_language_model", tokens(9, 60))
class TiedLanguageModel(nn.Module):
    """A small Llama; the embedding is also the output layer."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, width)
        self.attention = nn.ModuleList(RotaryAttention(width, 6, 2, 8) for _ in range(2))
        self.mlps = nn.ModuleList(GatedMLP(width, 96) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(5))
        self.head = nn.Linear(width, 60, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for index, (attention, mlp) in enumerate(zip(self.attention, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * index](x))
            x = x + mlp(self.norms[2 * index + 1](x))
        return self.head(self.norms[-1](x))
