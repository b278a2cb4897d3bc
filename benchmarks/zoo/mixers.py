"""Networks of linear layers, tables, sets and graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.attention import GatedMLP
from zoo.registry import features, images, model


@model("mlp", features(20))
def mlp() -> nn.Module:
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(48, 5))


@model("glu_rmsnorm", features(7, 24))
class GatedStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.norms = nn.ModuleList(nn.RMSNorm(40) for _ in range(2))
        self.mlps = nn.ModuleList(GatedMLP(40, 80) for _ in range(2))
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return self.head(x)


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.over_width = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_width(self.norm2(x))


@model("mlp_mixer", images())
class MLPMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, 8)
        self.blocks = nn.Sequential(MixerBlock(16, 48), MixerBlock(16, 48))
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class SpatialGate(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width // 2)
        self.mix = nn.Conv1d(places, places, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * self.mix(self.norm(gate))


@model("gmlp", features(9, 40))
class GMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(40),
                nn.Linear(40, 96),
                nn.GELU(),
                SpatialGate(9, 96),
                nn.Linear(48, 40),
            )
            for _ in range(2)
        )
        self.embed = nn.Linear(40, 40)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


@model("nerf", lambda: (torch.randn(64, 3), torch.randn(64, 3)))
class NeRF(nn.Module):
    """Sines of the place go in at the start and again half way; the direction goes in late."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(a, width) for a in (27, width, width + 27, width)
        )  # fmt: skip
        self.density = nn.Linear(width, 1)
        self.feature = nn.Linear(width, width)
        self.view = nn.Linear(width + 3, width // 2)
        self.color = nn.Linear(width // 2, 3)

    def forward(self, place: Tensor, direction: Tensor) -> Tensor:
        waves = [place]
        for power in range(4):
            waves += [torch.sin(2.0**power * place), torch.cos(2.0**power * place)]
        x = encoded = torch.cat(waves, -1)
        for index, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, encoded], -1) if index == 2 else x))
        color = F.relu(self.view(torch.cat([self.feature(x), direction], -1)))
        return torch.cat([torch.sigmoid(self.color(color)), F.softplus(self.density(x))], -1)


def clicks() -> tuple[Tensor, ...]:
    return torch.randn(2, 13), torch.randint(30, (2, 4))


@model("dlrm", clicks)
class DLRM(nn.Module):
    """Dense features and embeddings meet in pairwise dot products."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(30, 16) for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 10, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(dense)
        tables = [table(ids[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *tables], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([dense, products[:, rows, columns]], -1))


@model("embedding_bag", lambda: (torch.randint(50, (2, 7)),))
class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 32, mode="mean")
        self.head = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


@model("wide_and_deep", clicks)
class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(13, 1)
        self.tables = nn.ModuleList(nn.Embedding(30, 8) for _ in range(4))
        self.deep = nn.Sequential(nn.Linear(45, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        tables = [table(ids[:, index]) for index, table in enumerate(self.tables)]
        deep = self.out(self.deep(torch.cat([dense, *tables], -1)))
        return torch.sigmoid(self.wide(dense) + deep)


@model("highway", features(24))
class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.change = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.gate = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for change, gate in zip(self.change, self.gate, strict=True):
            share = torch.sigmoid(gate(x))
            x = share * F.relu(change(x)) + (1 - share) * x
        return self.head(x)


@model("pointnet", features(3, 50))
class PointNet(nn.Module):
    """A learned 3×3 transform, convolutions per point, and a maximum over the points."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU())
        self.matrix = nn.Linear(24, 9)
        self.local = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64), nn.ReLU())
        self.segment = nn.Conv1d(96, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.matrix(self.transform(x).max(-1)[0]).view(-1, 3, 3) + torch.eye(
            3, dtype=x.dtype
        )
        local = self.local(torch.bmm(matrix, x))
        total = self.deep(local).max(-1, keepdim=True)[0].expand(-1, -1, x.shape[-1])
        return self.segment(torch.cat([local, total], 1))


@model("gcn", lambda: (torch.randn(2, 8, 16), torch.rand(2, 8, 8)))
class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 48)])
        self.attend = nn.Linear(48, 1)
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency = adjacency / adjacency.sum(-1, keepdim=True)
        for layer in self.layers:
            x = F.relu(adjacency @ layer(x))
        weights = self.attend(x).softmax(1)
        return self.head((weights * x).sum(1))


@model("functional_weights", features(16))
class FunctionalWeights(nn.Module):
    """Bare parameters: F.linear with its own weight, and a soft mixture of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(32, 16))
        self.bias = nn.Parameter(torch.zeros(32))
        self.experts = nn.Parameter(torch.zeros(3, 32, 24))
        self.router = nn.Linear(32, 3)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, self.weight, self.bias))
        shares = self.router(x).softmax(-1)
        every = torch.einsum("bi,eio->beo", x, self.experts)
        return self.head(F.relu((shares.unsqueeze(-1) * every).sum(1)))


@model("layer_scale", images())
class LayerScale(nn.Module):
    """Gains and shifts that are bare parameters, outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 2, 1)
        self.conv = nn.Conv2d(32, 32, 3, padding=1)
        self.scale = nn.Parameter(torch.full((32, 1, 1), 1e-6))
        self.shift = nn.Parameter(torch.zeros(1, 32, 1, 1))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.scale * F.gelu(self.conv(x)) + self.shift
        return self.head(x.mean((-2, -1)))


@model("mixture_density", features(8))
class MixtureDensity(nn.Module):
    """Several output layers on one trunk, one of them reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU())
        self.share, self.mean, self.spread = nn.Linear(48, 4), nn.Linear(48, 12), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.trunk(x)
        return self.share(x).softmax(-1), self.mean(x).view(-1, 4, 3), self.spread(x).exp()
