"""Scores from one backward against the divergence of networks that are really changed."""

import copy
import gc

import numpy as np
import torch
from digits_search import batches, digits, trained
from scipy.stats import spearmanr
from torch import nn

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
    """Return how many numbers all tensors of this process hold together."""
    gc.collect()
    # By the type: some objects of torch answer for their class, and warn.
    return sum(x.numel() for x in gc.get_objects() if issubclass(type(x), torch.Tensor))


def test_no_activation_outlives_its_batch():
    """A hook that holds the tensor it is on keeps it alive for good: 20 GB, once, for 50 layers."""
    space = Space(trained(), RULES, digits()[0][:2])
    find_scores(space, batches(1))
    before = held()
    find_scores(space, batches(4))
    assert held() == before
