"""How the networks of the papers are trained: optimizer, precision, data augmentation.

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


def shift_and_flip(images: Tensor) -> Tensor:
    """Shift every image by up to four pixels, and mirror half of them."""
    size = images.shape[-1]
    padded = F.pad(images, (SHIFT,) * 4, mode="reflect")
    corners = torch.randint(2 * SHIFT + 1, (len(images), 2)).tolist()
    shifted = torch.stack(
        [
            image[:, top : top + size, left : left + size]
            for image, (top, left) in zip(padded, corners, strict=True)
        ]
    )
    is_mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(is_mirrored, shifted.flip(3), shifted)


def shifted(images: Tensor, by: int, which: int) -> Tensor:
    """Return images all moved by up to ``by`` pixels, in one of the ``(2 by + 1)²`` directions."""
    top, left = divmod(which, 2 * by + 1)
    height, width = images.shape[-2:]
    padded = F.pad(images, (by,) * 4, mode="replicate")
    return padded[..., top : top + height, left : left + width]


def normalised(images: np.ndarray, labels: np.ndarray, data: str) -> tuple[Tensor, Tensor]:
    """Return float images of about mean 0 and standard deviation 1, and labels."""
    mean, deviation = (torch.tensor(x)[:, None, None] for x in PIXELS.get(data, MNIST_PIXELS))
    pixels = torch.from_numpy(images).float().div_(255)
    return pixels.sub_(mean).div_(deviation), torch.from_numpy(labels)
