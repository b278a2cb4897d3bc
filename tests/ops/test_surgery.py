"""Least squares under a mask, against an exhaustive search and NumPy's own solver."""

from itertools import combinations

import numpy as np

from lilliput.ops.surgery import find_support, fit_support


def problem(seed, inputs=8, outputs=1, rows=200):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)) @ rng.standard_normal((inputs, inputs))
    weight = rng.standard_normal((inputs, outputs))
    y = x @ weight
    return x, y, weight


def loss(x, y, weight):
    return float(np.square(x @ weight - y).sum())


def keep(count):
    return lambda gain: gain >= np.sort(gain, axis=None)[-count]


def test_the_fit_is_that_of_numpy():
    x, y, _ = problem(0, inputs=6, outputs=3)
    mask = np.random.default_rng(1).random((6, 3)) < 0.5
    fitted = fit_support((x.T @ x)[None], (x.T @ y)[None], mask[None])[0]
    for j in range(3):
        expected = np.linalg.lstsq(x[:, mask[:, j]], y[:, j], rcond=None)[0]
        assert np.allclose(fitted[mask[:, j], j], expected)
    assert (fitted[~mask] == 0).all()


def test_the_support_is_close_to_the_best_of_all():
    """Over 40 problems; removing the smallest weights, refitted as well, is the control."""
    ratios, controls = [], []
    for seed in range(40):
        x, y, weight = problem(seed)
        hessian, products = (x.T @ x)[None], (x.T @ y)[None]

        def error(mask, x=x, y=y, hessian=hessian, products=products):
            return loss(x, y, fit_support(hessian, products, mask[None, :, None])[0])

        every = [np.isin(np.arange(8), chosen) for chosen in combinations(range(8), 4)]
        best = min(map(error, every))
        found = find_support(hessian, products, weight[None], keep(4))[0, :, 0]
        assert found.sum() == 4
        ratios.append(error(found) / best)
        controls.append(error(np.argsort(np.argsort(-np.abs(weight[:, 0]))) < 4) / best)
    assert np.median(ratios) < 1.05 and np.mean(np.log(ratios)) < 0.5 * np.mean(np.log(controls))


def test_groups_are_problems_of_their_own():
    parts = [problem(seed, inputs=5, outputs=2) for seed in (3, 4)]
    hessian = np.stack([x.T @ x for x, _, _ in parts])
    products = np.stack([x.T @ y for x, y, _ in parts])
    mask = np.random.default_rng(0).random(products.shape) < 0.6
    together = fit_support(hessian, products, mask)
    for i in range(2):
        alone = fit_support(hessian[i : i + 1], products[i : i + 1], mask[i : i + 1])
        assert np.array_equal(together[i], alone[0])
