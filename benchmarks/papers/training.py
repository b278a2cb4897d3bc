"""How the networks of the papers and of the search are trained: optimizer, precision, data augmentation.

Convolutional networks are trained in bfloat16 with channels last, which takes less than half the CPU time on
CPUs that have instructions for it. Masks, quantizers and optimizers still work on float32 weights, and every
error is measured in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHIFT = 4  # pixels
# Mean and standard deviation of the pixels; Fashion-MNIST is scaled like MNIST.
PIXELS = {"cifar-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))}
MNIST_PIXELS = ((0.1307,), (0.3081,))


def new_optimizer(model: nn.Module, data: str, rate: float) -> torch.optim.Optimizer:
    """Return Adam, or for CIFAR-10 SGD with momentum and weight decay."""
    if data != "cifar-10":
        return torch.optim.Adam(model.parameters(), rate, fused=True)
    return torch.optim.SGD(
        model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def precision(model: nn.Module) -> AbstractContextManager[None]:
    """Return the context of a forward pass in training; convolutional networks become channels-last."""
    is_mixed = has_convolutions(model)
    if is_mixed:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return torch.autocast("cpu", torch.bfloat16, enabled=is_mixed)


def augmentation(data: str) -> Callable[[Tensor], Tensor] | None:
    """Return the function that augments a batch of training images, or None."""
    return shift_and_flip if data == "cifar-10" else None


def shift_and_flip(
    images: Tensor, shift: int = SHIFT, generator: torch.Generator | None = None
) -> Tensor:
    """Shift every image by up to some pixels, with reflected borders, and mirror half of them."""
    size = images.shape[-1]
    padded = F.pad(images, (shift,) * 4, mode="reflect")
    corners = torch.randint(2 * shift + 1, (len(images), 2), generator=generator).tolist()
    shifted = torch.stack(
        [
            image[:, top : top + size, left : left + size]
            for image, (top, left) in zip(padded, corners, strict=True)
        ]
    )
    is_mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return torch.where(is_mirrored, shifted.flip(3), shifted)


def normalised(images: np.ndarray, labels: np.ndarray, data: str) -> tuple[Tensor, Tensor]:
    """Return float images of about mean 0 and standard deviation 1, and labels."""
    return scaled(torch.from_numpy(images), data), torch.from_numpy(labels)


def scaled(images: Tensor, data: str) -> Tensor:
    """Return images of bytes as floats of about mean 0 and standard deviation 1."""
    mean, deviation = (torch.tensor(x)[:, None, None] for x in PIXELS.get(data, MNIST_PIXELS))
    return images.float().div_(255).sub_(mean).div_(deviation)
