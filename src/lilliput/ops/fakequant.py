"""Quantize and dequantize in one go, as the plain formulas; backends may offer a faster equal."""

from __future__ import annotations

from lilliput.ops.namespace import Tensor, namespace


def integer_range(bits: int, narrow: bool = True) -> tuple[int, int]:
    """Return the smallest and largest signed integer of ``bits`` bits, which are two or more.

    A narrow range is symmetric around zero (-127 to 127), so that a symmetric scale wastes nothing.

    Examples
    --------
    >>> integer_range(8), integer_range(4, narrow=False)
    ((-127, 127), (-8, 7))
    """
    if bits < 2:
        raise ValueError(f"received bits={bits}; a signed integer grid needs at least 2.")
    top = 2 ** (bits - 1) - 1
    return (-top if narrow else -top - 1), top


def quantize_symmetric(tensor: Tensor, bits: int) -> Tensor:
    """Round a tensor to ``2**bits - 1`` levels around zero, scaled by its largest magnitude.

    ``scale = max|x| / (2**(bits-1) - 1)`` and ``q(x) = scale * clip(round(x / scale))``; zero stays
    exactly zero, and an all-zero tensor comes back as it is.

    Examples
    --------
    >>> import torch
    >>> quantize_symmetric(torch.tensor([0.0, 0.49, 1.0]), bits=2)
    tensor([0., 0., 1.])
    """
    xp = namespace(tensor)
    low, high = integer_range(bits)
    wide = xp.widen(tensor)
    quantized = xp.fake_quantize(wide, xp.max(xp.abs(wide)) / high, low, high)
    return xp.to_float(quantized, like=tensor)


def quantize_unit(tensor: Tensor, bits: int) -> Tensor:
    """Round values in [0, 1] to the grid of ``2**bits`` levels; the gradient passes straight through.

    This is ``quantize_k`` of DoReFa-Net, eq. 5.
    """
    xp = namespace(tensor)
    levels = 2**bits - 1
    scaled = tensor * levels
    return xp.straight_through(scaled, xp.round(scaled)) / levels
