"""A problem small enough to be trained in a blink, on one process or on two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilliput.torch import AGPPruner, LevelPruner, NaiveQuantizer

EPOCHS, STEPS, BATCH = 3, 4, 8

ALGORITHMS = {
    "level": (LevelPruner, [{"op_types": ["default"], "sparsity": 0.5}]),
    "agp": (
        AGPPruner,
        [{"initial_sparsity": 0.2, "final_sparsity": 0.7, "end_epoch": 2, "frequency": 1}],
    ),
    "naive": (NaiveQuantizer, [{"quant_types": ["weight"], "quant_bits": 4}]),
}
OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
}


class Net(nn.Module):
    """Three layers that two processes cannot share evenly: 3, 7 and 1 rows.

    Smooth and without BatchNorm, so that half batches on two processes give the same gradient as
    the whole batch on one, but for rounding.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 3, 3, dtype=torch.float64)
            self.body = nn.Linear(48, 7, dtype=torch.float64)
            self.head = nn.Linear(7, 1, dtype=torch.float64)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images).tanh().flatten(1)
        return self.head(self.body(features).tanh())


def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the global batches of an epoch, the same in every process."""
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 1, 6, 6, dtype=torch.float64, generator=generator)
        yield images, images.square().mean(dim=(1, 2, 3)).unsqueeze(1)


def probe() -> Tensor:
    """Return inputs that no training has seen."""
    return next(batches(epoch=99))[0]


def compress(algorithm: str, model: nn.Module, optimizer: Any = None) -> Any:
    """Compress a model in place and return the pruner or quantizer."""
    cls, rules = ALGORITHMS[algorithm]
    compressor = cls(model, rules, optimizer)
    compressor.compress()
    return compressor


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    compressor: Any,
    rank: int = 0,
    ranks: int = 1,
) -> list[float]:
    """Train on this rank's share of each global batch; return the sparsity in each epoch."""
    sparsities = []
    for epoch in range(EPOCHS):
        compressor.update_epoch(epoch)
        train_epoch(model, optimizer, epoch, rank, ranks)
        flat = [mask.flatten() for mask in masks_of(compressor).values()]
        sparsities.append(float((torch.cat(flat) == 0).double().mean()) if flat else 0.0)
    return sparsities


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, rank: int = 0, ranks: int = 1
) -> None:
    """Take one step per global batch, seeing this rank's share of it."""
    for images, targets in batches(epoch):
        optimizer.zero_grad()
        F.mse_loss(model(images[rank::ranks]), targets[rank::ranks]).backward()
        optimizer.step()


def masks_of(compressor: Any) -> dict[str, Tensor]:
    """Return the masks in force by layer name; none for a quantizer."""
    wrappers = compressor.get_modules_wrapper()
    return {w.name: w.weight_mask.clone() for w in wrappers if "weight_mask" in w._buffers}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the raw parameters in full, by name; sharded ones are gathered."""
    whole = {
        name: weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        for name, weight in model.named_parameters()
    }
    return {name: weight.detach().clone() for name, weight in whole.items()}


def train_alone(algorithm: str, optimizer: str = "sgd") -> dict[str, Any]:
    """Return what one process makes of the global batches: what two processes must agree with."""
    model = Net()
    rule = OPTIMIZERS[optimizer](model.parameters())
    compressor = compress(algorithm, model, rule)
    return {
        "sparsities": train(model, rule, compressor),
        "masks": masks_of(compressor),
        "weights": weights_of(model),
        "outputs": model(probe()).detach(),
        "layers": compressor.state().layers,
    }


def assert_bitwise_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Fail unless two dicts hold the same tensors, bit for bit."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def assert_equal_but_for_rounding(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Fail unless two dicts of float64 tensors agree to ten digits: sums in another order do."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == torch.float64, name
        torch.testing.assert_close(tensor, right[name], rtol=1e-10, atol=1e-14)


def assert_pruned_weights_are_zero(
    masks: dict[str, Tensor], weights: dict[str, Tensor], pruned: bool = True
) -> None:
    """Fail unless every masked entry of the raw weights is exactly zero."""
    assert bool(masks) == pruned
    for name, mask in masks.items():
        assert mask.numel() > mask.count_nonzero() > 0, name
        assert not weights[f"{name}.weight"][mask == 0].any(), name
