"""Add the same noise to the kept weights of a masked model and of the cut one.

A head of zeros hides all errors before it, and so do scales of one. With noise on every kept weight nothing
is hidden, and two models that agree then agree for other weights, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.cutting import clear_, cut_all
from lilliput.frameworks.torch.sidecar import is_ours, mask_of
from lilliput.frameworks.torch.weights import ones_of
from lilliput.graph.cuts import Cut, by_tensor
from lilliput.graph.labels import Indices

SEED = 20_230
_CHUNK = 131_072  # entries of a weight processed at a time, which stay in the cache
_PERIOD = 65_537  # of noise: a prime, so that neighbouring rows and channels get other numbers
_SHARE = 0.35  # of a weight's standard deviation: uniform noise of this width has a tenth of it


class Noise:
    """Noise for every kept weight, so that no zero or one hides an error.

    Parameters
    ----------
    model : torch.nn.Module
        The masked model.
    cuts : sequence of Cut
        What is about to be cut out of it; there is no noise in those places.
    """

    def __init__(self, model: nn.Module, cuts: Sequence[Cut]) -> None:
        self.cuts = by_tensor(cuts)
        modules = dict(model.named_modules())
        self.parameters: dict[str, Tensor] = {}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        for name, parameter in model.named_parameters():
            if not is_ours(name) and parameter.is_floating_point():
                self.parameters[name] = parameter.detach()
                path, _, leaf = name.rpartition(".")
                self._owners[name] = modules[path], leaf
        self._spreads: dict[str, float] = {}
        table = torch.rand(_PERIOD, generator=torch.Generator().manual_seed(SEED)) - 0.5
        longest = max([p.shape[1:].numel() for p in self.parameters.values()], default=1)
        self._table = table.repeat((_CHUNK + longest) // _PERIOD + 2)
        self._tables: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def add(self, name: str, tensor: Tensor, first: int = 0) -> Tensor:
        """Add noise to rows of a weight of the masked model, except where it is masked or cut.

        What the model has in those places stays: zeros, unless the cut is wrong.
        """
        if name not in self.parameters:
            return tensor
        cuts, shape = self.cuts.get(name, []), self.parameters[name].shape
        if _is_whole(self.parameters[name], cuts):
            return tensor.add_(self._whole(name, tensor, cuts), alpha=self._spread(name))
        mask = mask_of(*self._owners[name])
        keeps = [(cut.dim, _ones_at(cut.keep, shape[cut.dim], tensor)) for cut in cuts]
        for row, part, noise in self._parts(name, tensor, first):
            for dim, kept in keeps:
                kept = kept[first + row : first + row + len(part)] if dim == 0 else kept
                noise = noise * kept.view(-1, *[1] * (part.dim() - dim - 1))
            if mask is not None:
                noise = noise * ones_of(mask[first + row : first + row + len(part)], noise.dtype)
            part.add_(noise, alpha=self._spread(name))
        return tensor

    def add_cut(self, name: str, tensor: Tensor, first: int = 0) -> Tensor:
        """Add the noise of the kept entries to rows of a shrunk model's weight."""
        if name not in self.parameters:
            return tensor
        cuts, shape = self.cuts.get(name, []), self.parameters[name].shape
        if _is_whole(self.parameters[name], cuts):
            noise = cut_all(self._whole(name, tensor, cuts), cuts)
            return tensor.add_(noise, alpha=self._spread(name))
        mask = mask_of(*self._owners[name])
        table, start, width, step = self._noise(name, tensor)
        kept = next((cut.keep for cut in cuts if cut.dim == 0), np.arange(shape[0]))
        others = [cut for cut in cuts if cut.dim != 0]
        for row in range(0, len(tensor), step):  # in steps: all of the noise is a large weight
            rows = torch.from_numpy(kept[first + row : first + min(row + step, len(tensor))])
            at = (start + rows * width) % _PERIOD
            noise = table.unfold(0, width, 1)[at.to(table.device)].view(-1, *shape[1:])
            noise = cut_all(noise, others)
            if mask is not None:
                left = cut_all(mask[rows.to(mask.device)], others)
                noise = noise.mul_(ones_of(left, noise.dtype))
            tensor[row : row + step].add_(noise, alpha=self._spread(name))
        return tensor

    def _whole(self, name: str, like: Tensor, cuts: list[Cut]) -> Tensor:
        """Return all the noise of a weight, of the type of a tensor."""
        noise = like.new_zeros(self.parameters[name].shape)
        for _, part, found in self._parts(name, noise):
            part.copy_(found)
        for cut in cuts:
            clear_(cut, noise)
        mask = mask_of(*self._owners[name])
        return noise if mask is None else noise.mul_(ones_of(mask, noise.dtype))

    def _parts(
        self, name: str, tensor: Tensor, first: int = 0
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield rows of a weight, from where, and their noise; ``first`` is the tensor's first row."""
        table, start, width, step = self._noise(name, tensor)
        for row in range(0, len(tensor) if tensor.dim() else 1, step):
            part = tensor[row : row + step] if tensor.dim() else tensor
            at = (start + (first + row) * width) % _PERIOD
            yield row, part, table[at : at + part.numel()].view(part.shape)

    def _noise(self, name: str, tensor: Tensor) -> tuple[Tensor, int, int, int]:
        """Return the noise, the offset of a parameter in it, the row length, and the rows per step."""
        kind = (tensor.dtype, tensor.device)
        if kind not in self._tables:
            self._tables[kind] = self._table.to(tensor.device, tensor.dtype)
        width = max(1, self.parameters[name].shape[1:].numel())
        return self._tables[kind], zlib.crc32(name.encode()), width, max(1, _CHUNK // width)

    def _spread(self, name: str) -> float:
        """Return the width of a parameter's noise, whose deviation is a tenth of the parameter's."""
        if name not in self._spreads:
            parameter = self.parameters[name]
            self._spreads[name] = float(parameter.std()) if parameter.numel() > 1 else 0.0
        return _SHARE * self._spreads[name] or _SHARE


def _is_whole(parameter: Tensor, cuts: list[Cut]) -> bool:
    """Whether a weight needs its noise as a whole: each group of filters loses different inputs."""
    return not parameter.dim() or any(cut.keep.ndim > 1 for cut in cuts)


def _ones_at(keep: Indices, size: int, like: Tensor) -> Tensor:
    """Return a vector of ones at some indices, and zeros elsewhere."""
    flags = np.zeros(size)
    flags[keep] = 1
    return torch.from_numpy(flags).to(like.device, like.dtype)
