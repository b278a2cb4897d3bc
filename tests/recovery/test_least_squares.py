"""The sums give what NumPy gives from all rows at once."""

import numpy as np
import torch

from lilliput.frameworks.torch.least_squares import NormalEquations


def problem(groups=2, rows=40, inputs=3, outputs=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(groups, rows, inputs, generator=generator) + 1
    y = torch.randn(groups, rows, outputs, generator=generator)
    equations = NormalEquations()
    for part in (slice(0, 7), slice(7, rows)):
        equations.add(x[:, part], y[:, part])
    return x.double().numpy(), y.double().numpy(), equations


def test_fit_with_a_shift_is_ordinary_least_squares():
    x, y, equations = problem()
    weight, shift = equations.solve(torch.zeros(2, 3, 4), ridge=0)
    for group in range(2):
        design = np.c_[x[group], np.ones(len(x[group]))]
        expected = np.linalg.lstsq(design, y[group], rcond=None)[0]
        np.testing.assert_allclose(weight[group], expected[:-1], atol=1e-5)
        np.testing.assert_allclose(shift[group], expected[-1], atol=1e-5)


def test_fit_without_a_shift_goes_through_the_origin():
    x, y, equations = problem()
    weight, shift = equations.solve(torch.zeros(2, 3, 4), ridge=0, has_shift=False)
    expected = np.linalg.lstsq(x[1], y[1], rcond=None)[0]
    np.testing.assert_allclose(weight[1], expected, atol=1e-5)
    assert not shift.any()


def test_what_the_rows_do_not_show_stays_where_it_started():
    x = torch.zeros(1, 5, 2)
    x[..., 0] = torch.arange(5.0)
    equations = NormalEquations()
    equations.add(x, 2 * x[..., :1])
    weight, _ = equations.solve(torch.tensor([[[7.0], [7.0]]]), ridge=1e-6)
    np.testing.assert_allclose(weight.flatten(), [2, 7], atol=1e-4)


def test_a_high_price_keeps_the_start():
    _, _, equations = problem()
    start = torch.ones(2, 3, 4)
    weight, _ = equations.solve(start, ridge=1e6)
    np.testing.assert_allclose(weight, start, atol=1e-4)


def test_error_is_that_of_the_residuals():
    x, y, equations = problem()
    weight, shift = equations.solve(torch.zeros(2, 3, 4), ridge=0.1)
    residuals = y - x @ weight.numpy() - shift.numpy()[:, None]
    centred = y - y.mean(1, keepdims=True)
    outputs = np.array([[True, False, True, True], [False, True, True, True]])
    square = lambda x: (x**2).sum(1)[outputs].sum()  # noqa: E731
    found = equations.error(weight, shift, torch.from_numpy(outputs))
    np.testing.assert_allclose(found, square(residuals) / square(centred), rtol=1e-4)
