"""Models that take inputs of several sizes, and what their files say and compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from lilliput.export.targets.executed import open_file


def shapes_of(path: Path) -> dict[str, list[Any]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in graph.input
    }


def assert_same(path: Path, model: nn.Module, *inputs: Any, **named: Any) -> None:
    with torch.no_grad():
        expected = model(*inputs, **named)
    np.testing.assert_allclose(open_file(path)(*inputs, **named), expected, atol=2e-5)


class Convs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.pool, self.linear = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.pool(self.norm(self.conv(x)).relu()).flatten(1))


class Encoder(nn.Module):
    """Tokens and their mask, a table of 20 positions, one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(20, 16)
        self.query, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.places(positions)
        scores = self.query(x) @ x.transpose(1, 2)
        scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        return self.head(scores.softmax(-1) @ x)


def tokens(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
