"""Scores from one backward against the divergence of networks that are really changed."""

import copy
import gc

import numpy as np
import pytest
import torch
from digits_search import batches, digits, trained
from scipy.stats import spearmanr
from torch import nn

from lilliput.frameworks.torch.effects import weight_effects
from lilliput.search.scores import find_scores
from lilliput.search.space import Space
from lilliput.torch import L1NormPruner, PTQQuantizer

RULES = [
    {
        "op_types": ["Conv2d", "Linear"],
        "sparsity": {"choose": [0, 0.25, 0.5, 0.75]},
        "quant_bits": {"choose": [{"weight": b, "input": 8} for b in (3, 4, 8)]},
    }
]


def divergence(model, reference, x):
    with torch.no_grad():
        one, two = reference(x).log_softmax(1), model(x).log_softmax(1)
    return float((one.exp() * (one - two)).sum(1).mean())


def test_scores_rank_choices_as_the_real_divergence_does():
    model, x = trained(), digits()[0]
    space = Space(model, RULES, x[:2])
    scores = find_scores(space, batches())
    expected, real = [], []
    for number, decision in enumerate(space.decisions):
        for index in range(1, len(decision.choices)):
            choice = [0] * len(space.decisions)
            choice[number] = index
            changed = copy.deepcopy(model)
            if decision.key == "sparsity":
                rules = space.pruning(choice)
                changed = L1NormPruner(changed, rules, example_inputs=x[:2]).compress()
            else:
                rules = [{"op_names": [decision.layers[0]], "quant_bits": decision.choices[index]}]
                quantizer = PTQQuantizer(changed, rules, weights="mse")
                changed = quantizer.compress()
                quantizer.calibrate(batches(), progress=False)
            expected.append(scores[number][index])
            real.append(divergence(changed, model, x))
    assert spearmanr(expected, real).statistic >= 0.9


def test_a_score_is_the_squared_change_of_the_loss():
    """One linear layer: the change of the log-likelihood by rounding is known in closed form."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(6, 4), torch.randn(4096, 6)
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": {"choose": [3, 8]}}]
    scores = find_scores(Space(model, rules, x[:2]), [x])
    quantizer = PTQQuantizer(
        copy.deepcopy(model),
        [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 3}],
        weights="mse",
    )
    rounded = quantizer.compress()
    # mean over examples of ΔᵀFΔ with the Fisher information F = diag(p) - ppᵀ of the softmax
    with torch.no_grad():
        p, change = model(x).softmax(1), rounded(x) - model(x)
        fisher = ((p * change**2).sum(1) - (p * change).sum(1) ** 2).mean()
    assert np.isclose(scores[0][1], float(fisher), rtol=0.1)


def test_nothing_is_left_in_the_model():
    model, x = trained(), digits()[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    find_scores(Space(model, RULES, x[:2]), batches(1))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_gradients_of_watched_weights_are_not_computed():
    """A third of the backward: only those of inputs and outputs are looked at."""
    model, computed = trained(), []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: computed.append(name))
    find_scores(Space(model, RULES, digits()[0][:2]), batches(1))
    assert set(computed) == {"norm.weight", "norm.bias"}


def test_a_weight_that_tokens_select_is_scored_though_another_layer_shares_it():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens).mean(1))

    torch.manual_seed(0)
    tokens = torch.randint(16, (32, 5))
    rules = [{"op_types": ["Embedding", "Linear"], "quant_types": ["weight"]}]
    space = Space(Tied(), [{**rules[0], "quant_bits": {"choose": [2, 8]}}], tokens[:2])
    one, two = (find_scores(space, [tokens] * n) for n in (1, 3))
    assert one[0][1] > one[0][0] > 0
    assert np.isclose(one[0][1], two[0][1], rtol=0.5)


def held():
    """Return how many numbers all tensors of this process hold together, if they have values."""
    gc.collect()
    # By the type: some objects of torch answer for their class, and warn.
    kinds = (torch.Tensor, nn.Parameter)
    return sum(x.numel() for x in gc.get_objects() if type(x) in kinds)


def test_no_activation_outlives_its_batch():
    """A hook that holds the tensor it is on keeps it alive for good: 20 GB, once, for 50 layers."""
    space = Space(trained(), RULES, digits()[0][:2])
    find_scores(space, batches(1))
    before = held()
    find_scores(space, batches(4))
    assert held() <= before  # less if something that other tests have left goes meanwhile


class Padded(nn.Conv2d):
    """A convolution whose forward does more than torch's."""

    def forward(self, x):
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


@pytest.mark.parametrize("keeps_means", [False, True])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(4, 6, 1), (3, 4, 5, 5)),  # one product for all changes
        (nn.Linear(4, 6), (3, 12, 4)),
        (nn.Conv2d(4, 6, 1, stride=2), (3, 4, 5, 5)),  # a run for each
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (3, 4, 5, 5)),
        (Padded(4, 6, 2), (3, 4, 5, 5)),
        (nn.Linear(4, 6), (3, 4)),
    ],
)
def test_the_effect_of_a_change_is_the_derivative_along_it(module, shape, keeps_means):
    torch.manual_seed(0)
    x, changes = torch.randn(shape), [torch.randn_like(module.weight) for _ in range(2)]
    before = module(x).detach()
    gradient = torch.randn_like(before)
    found = weight_effects(module, "weight", changes, x, gradient, keeps_means)
    for change, effect in zip(changes, found, strict=True):
        changed = copy.deepcopy(module)
        changed.weight.data += change
        moved = changed(x).detach() - before
        if keeps_means:
            axes = [i for i in range(moved.dim()) if i != layer_axis(module, moved)]
            moved = moved - moved.mean(axes, keepdim=True)
        wanted = (gradient * moved).flatten(1).sum(1)
        torch.testing.assert_close(effect, wanted, rtol=1e-4, atol=1e-4)


def layer_axis(module, output):
    return output.dim() - 1 if isinstance(module, nn.Linear) else 1


def test_an_input_that_is_changed_later_is_scored_as_it_was():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.one(x)
            y = self.two(x)
            return y + x.mul_(0.0)[:, :3] if self.overwrites else y + 0.0 * x[:, :3]

    torch.manual_seed(0)
    model, x = InPlace(), torch.randn(16, 4)
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": {"choose": [2, 8]}}]
    found = []
    for model.overwrites in (False, True):
        found.append(find_scores(Space(model, rules, x[:2]), [x]))
    assert all(np.allclose(a, b) for a, b in zip(*found, strict=True))
