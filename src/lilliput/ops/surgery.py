"""Choose which weights of a layer to keep, and refit them: least squares under a mask, in NumPy.

For a layer with inputs ``X`` and target outputs ``Y``, the problem is ``min ‖X W - Y‖²`` with few nonzero
entries of ``W``. Only ``H = XᵀX`` and ``B = XᵀY`` are needed, one pair for each group of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FIRST = 0.1  # of the mean energy of the inputs: initial penalty of disagreement
_STEPS, _LEAST, _EVERY = 300, 12, 3


def find_support(
    hessian: Array, products: Array, start: Array, choose: Callable[[Array], Flags]
) -> Flags:
    """Return which weights to keep, by alternating between the fit and the pattern (ADMM).

    One variable fits freely, the other has the zeros; the penalty on their difference grows until the
    zeros no longer change. All weights are updated together in each step, whereas removing them one by one
    would take as many steps as there are weights. Meng et al., "ALPS", 2024.

    Parameters
    ----------
    hessian : array (groups, inputs, inputs)
        Products of the inputs, positive definite.
    products : array (groups, inputs, outputs)
        Products of the inputs and the target outputs.
    start : array (groups, inputs, outputs)
        The weights without zeros.
    choose : callable
        Returns which weights are kept, given the gain of each.

    Examples
    --------
    >>> hessian = np.array([[[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    >>> start = np.array([[[1.1], [1.0], [1.2]]])  # the first two say nearly the same
    >>> two = lambda gain: gain >= np.sort(gain, axis=None)[-2]
    >>> find_support(hessian, hessian @ start, start, two)[0, :, 0].tolist()
    [True, False, True]
    """
    energies, basis = np.linalg.eigh(hessian)
    energies, turned = np.maximum(energies, 0)[..., None], basis.transpose(0, 2, 1)
    price = _FIRST * float(energies.mean())
    kept, dual, last = start, np.zeros_like(start), None
    mask = choose(start**2)
    for step in range(1, _STEPS + 1):
        goal = turned @ (products + price * kept - dual)
        free = basis @ (goal / (energies + price))
        moved = free + dual / price
        mask = choose(moved**2)
        kept = moved * mask
        dual = dual + price * (free - kept)
        if step % _EVERY:
            continue
        changed = mask.sum() if last is None else int((mask != last).sum())
        if not changed and step > _LEAST:
            break
        share = changed / max(int(mask.sum()), 1)
        price *= 1.3 if share > 0.1 else 1.2 if share > 0.005 else 1.1
        last = mask
    return mask


def fit_support(hessian: Array, products: Array, mask: Flags) -> Array:
    """Return the least-squares values of the kept weights; the others are zero.

    Examples
    --------
    >>> hessian = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    >>> fit_support(hessian, np.array([[[3.0], [3.0]]]), np.array([[[True], [False]]]))[0].tolist()
    [[1.5], [0.0]]
    """
    weight = np.zeros_like(products)
    for group, output in np.ndindex(products.shape[0], products.shape[2]):
        kept = np.flatnonzero(mask[group, :, output])
        if len(kept):
            part = hessian[group][np.ix_(kept, kept)]
            weight[group, kept, output] = np.linalg.solve(part, products[group, kept, output])
    return weight
