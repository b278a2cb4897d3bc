"""Each loss against its formula, written out in NumPy, and its gradient against torch's own functions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lilliput.distillation.attention import attention_distance
from lilliput.distillation.cosine import cosine_distance
from lilliput.distillation.kl import kl_divergence
from lilliput.distillation.mse import mean_squared_error

LOGITS = st.lists(st.floats(-30, 30), min_size=12, max_size=12)


def pair(*shape):
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in "ab")
    return one.requires_grad_(), other


def softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("shape", "axis"), [((6, 5), -1), ((2, 3, 5), -1), ((2, 5, 3, 4), 1)])
def test_kl_is_the_formula_of_the_paper(temperature, shape, axis):
    student, teacher = pair(*shape)
    p, q = (softmax(x.detach().numpy() / temperature, axis) for x in (teacher, student))
    wanted = temperature**2 * (p * np.log(p / q)).sum(axis).mean()
    received = kl_divergence(student, teacher, temperature, axis)
    np.testing.assert_allclose(received.item(), wanted, rtol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_has_the_gradient_of_torchs_own(temperature):
    student, teacher = pair(6, 5)
    kl_divergence(student, teacher, temperature).backward()
    received, student.grad = student.grad, None
    own = F.kl_div(
        (student / temperature).log_softmax(1),
        (teacher / temperature).softmax(1),
        reduction="batchmean",
    )
    (own * temperature**2).backward()
    torch.testing.assert_close(received, student.grad)
    # The square makes gradients as large as without a temperature: T · (q - p) / n
    q, p = ((x.detach() / temperature).softmax(1) for x in (student, teacher))
    torch.testing.assert_close(received, temperature * (q - p) / 6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(one=LOGITS, other=LOGITS, temperature=st.floats(0.5, 20))
def test_kl_is_never_negative_and_zero_for_equal_logits(one, other, temperature):
    student, teacher = (torch.tensor(x, dtype=torch.float64).view(3, 4) for x in (one, other))
    assert kl_divergence(student, teacher, temperature).item() >= -1e-9
    assert kl_divergence(student, student.clone(), temperature).item() == 0
    # A constant more on every logit of a sample changes nothing.
    moved = student + torch.tensor([[3.0], [-2.0], [7.0]], dtype=torch.float64)
    assert kl_divergence(moved, student, temperature).item() == pytest.approx(0, abs=1e-9)


def test_classes_that_the_teacher_rules_out_count_for_nothing():
    student, teacher = pair(6, 5)
    teacher[:, 3] = -float("inf")
    received = kl_divergence(student, teacher, 1.0)
    p, q = teacher.softmax(1), student.detach().softmax(1)
    rest = [0, 1, 2, 4]
    wanted = (p[:, rest] * (p[:, rest] / q[:, rest]).log()).sum(1).mean()
    torch.testing.assert_close(received.detach(), wanted)
    received.backward()
    assert torch.isfinite(student.grad).all()
    masked = student.detach().clone()
    masked[:, 3] = -float("inf")
    assert torch.isfinite(kl_divergence(masked, teacher, 1.0))


def test_mse_and_its_gradient():
    student, teacher = pair(4, 3, 2)
    received = mean_squared_error(student, teacher)
    received.backward()
    assert received.item() == pytest.approx(((student - teacher) ** 2).sum().item() / 24)
    torch.testing.assert_close(student.grad, 2 * (student.detach() - teacher) / 24)


@pytest.mark.parametrize("axis", [None, 1, -1])
def test_cosine_and_its_gradient(axis):
    student, teacher = pair(4, 3, 5)
    cosine_distance(student, teacher, axis).backward()
    received, student.grad = student.grad, None
    vectors = [x.flatten(1) for x in (student, teacher)] if axis is None else [student, teacher]
    own = 1 - F.cosine_similarity(*vectors, dim=-1 if axis is None else axis).mean()
    torch.testing.assert_close(cosine_distance(student, teacher, axis), own)
    own.backward()
    torch.testing.assert_close(received, student.grad)


def test_a_vector_of_zeros_has_a_finite_gradient():
    zeros, teacher = torch.zeros(2, 3, 4, 4, requires_grad=True), torch.ones(2, 3, 4, 4)
    (cosine_distance(zeros, teacher) + attention_distance(zeros, teacher, 1)).backward()
    assert torch.isfinite(zeros.grad).all()


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 1.0, 1e4])
def test_the_magnitude_of_features_does_not_matter(scale):
    student, teacher = (scale * x.detach().float() for x in pair(4, 3, 5, 6))
    one, other = (x.flatten(1) for x in (student, teacher))
    own = 1 - F.cosine_similarity(one, other).mean()
    torch.testing.assert_close(cosine_distance(student, teacher), own)
    assert cosine_distance(student, student).item() == pytest.approx(0, abs=1e-6)
    if scale >= 1e-5:  # maps are squares, which float32 rounds to zero below
        maps = [F.normalize(x.square().mean(1).flatten(1)) for x in (student, teacher)]
        own = (maps[0] - maps[1]).square().sum(1).mean()
        torch.testing.assert_close(attention_distance(student, teacher, 1), own)


@pytest.mark.parametrize(("axis", "others"), [(1, (2, 3)), (-1, (1, 2))])
def test_attention_is_the_distance_of_normalized_maps(axis, others):
    student, teacher = pair(4, 3, 5, 6)
    maps = []
    for x in (student.detach().numpy(), teacher.numpy()):
        flat = (x**2).mean(axis).reshape(4, -1)
        maps.append(flat / np.linalg.norm(flat, axis=1, keepdims=True))
    wanted = ((maps[0] - maps[1]) ** 2).sum(1).mean()
    received = attention_distance(student, teacher, axis)
    np.testing.assert_allclose(received.item(), wanted, rtol=1e-9)
    assert torch.autograd.gradcheck(lambda x: attention_distance(x, teacher, axis), student)


def test_attention_does_not_ask_for_equal_numbers_of_channels():
    features = torch.rand(2, 3, 4, 4)
    doubled = features.repeat_interleave(2, 1)
    assert attention_distance(features, doubled, 1).item() == pytest.approx(0, abs=1e-6)
