"""Tiny models, one for each way in which a layer can store or use its weight.

Each takes a millisecond to run: small enough to compress dozens of times in a test, and odd enough
(sizes that no sparsity divides evenly) to reveal off-by-one errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class Specimen(nn.Module):
    """A model that knows its inputs.

    Examples
    --------
    >>> model = TinyMLP()
    >>> tuple(model(model.make_input(batch=3)).shape)
    (3, 5)
    """

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch that is the same each time, in the dtype of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} must override make_input().")

    def _noise(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        like = next(self.parameters())
        return torch.randn(shape, generator=generator).to(like)

    def _tokens(self, count: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return torch.randint(count, shape, generator=generator).to(next(self.parameters()).device)


class TinyMLP(Specimen):
    """Two linear layers, one of them without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(11, 13)
        self.act = nn.ReLU()
        self.out = nn.Linear(13, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers per sample."""
        scores: Tensor = self.out(self.act(self.hidden(x)))
        return scores

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch of vectors."""
        return self._noise(batch, 11)


class TinyCNN(Specimen):
    """Two convolutions with batch norm, and a linear layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 10, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(10)
        self.act = nn.ReLU()
        self.fc = nn.Linear(10 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers per image."""
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        scores: Tensor = self.fc(x.flatten(1))
        return scores

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch of images."""
        return self._noise(batch, 3, 8, 8)


class TinyTransformer(Specimen):
    """Attention and an encoder layer: their parents use weights without calling the owner.

    In eval mode without gradients, torch passes the raw weights of both to fused kernels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers per sequence."""
        attended, _ = self.attention(x, x, x, need_weights=False)
        scores: Tensor = self.head(self.encoder(x + attended).mean(1))
        return scores

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch of sequences of vectors."""
        return self._noise(batch, 6, 16)


class TinyLSTM(Specimen):
    """A bidirectional LSTM: four weights in one module, used through a flat list."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 9, batch_first=True, bidirectional=True)
        self.head = nn.Linear(18, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers per sequence."""
        outputs, _ = self.lstm(x)
        scores: Tensor = self.head(outputs.mean(1))
        return scores

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch of sequences of vectors."""
        return self._noise(batch, 6, 7)


class TinyTied(Specimen):
    """A language model whose embedding and output layer share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 12)
        self.mix = nn.Linear(12, 12)
        self.out = nn.Linear(12, 19)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for each word of the vocabulary, at each position."""
        scores: Tensor = self.out(torch.tanh(self.mix(self.embed(tokens))))
        return scores

    def make_input(self, batch: int = 4) -> Tensor:
        """Return a batch of token sequences."""
        return self._tokens(19, batch, 6)


SPECIMENS: Mapping[str, Callable[[], Specimen]] = {
    "cnn": TinyCNN,
    "mlp": TinyMLP,
    "attention": TinyTransformer,
    "recurrent": TinyLSTM,
    "tied": TinyTied,
}
