"""Random networks: the shrunk model computes what the masked one computes, whatever the graph."""

import itertools
import re
from collections import Counter

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_nets import build, specs

from lilliput.errors import ConfigError, StageError
from lilliput.frameworks.torch.build import build as build_plan
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.wrapper import PrunerModuleWrapper
from lilliput.graph.plan import Plan
from lilliput.pruning.l1 import L1NormPruner
from lilliput.speedup.shrink import speedup

PHASES = [x for x in Phase if x is not Phase.explain]  # which would take minutes
shares = st.sampled_from([0.2, 0.34, 0.5, 0.7, 0.95])


@st.composite
def plans(draw):
    """Return a network, a seed, and the sparsity of each kind of layer."""
    rules = [{"op_types": ["default"], "sparsity": draw(shares)}]
    rules += [{"op_types": ["Linear"], "sparsity": draw(shares)}]
    if draw(st.integers(0, 3)) == 3:  # in more, too many networks have nothing left to prune
        rules += [{"op_names": ["maps.0.0"], "exclude": True}]
    return draw(specs), draw(st.integers(0, 99)), rules


def count(model):
    return sum(p.numel() for p in model.parameters())


def relative(a, b):
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max())


def has_masked(model):
    """Whether some mask of a compressed model has a zero."""
    wrappers = [m for m in model.modules() if isinstance(m, PrunerModuleWrapper)]
    masks = [m for w in wrappers for m in (w.weight_mask, w.bias_mask) if m is not None]
    return any(bool((mask == 0).any()) for mask in masks)


def check(plan, allow_graph=True):
    """Shrink a random network, and return which of the possible outcomes it had."""
    spec, seed, rules = plan
    model = build(spec, seed)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    full, before = model.eval()(x).detach(), count(model)
    try:
        L1NormPruner(model, rules, example_inputs=x).compress()
    except ConfigError as error:  # everything is excluded, or tied to what is
        assert "no selected layer has channels that can be removed" in str(error)
        return "refused"
    masked = model(x).detach()
    if not has_masked(model):  # a small share of a few balanced channels is none
        assert torch.equal(masked, full)
        with pytest.raises(StageError, match="nothing to cut"):
            speedup(model, x)
        return "nothing to cut"
    result = speedup(model, x, allow_graph=allow_graph)
    assert relative(result.model(x).detach(), masked) <= 1e-10
    assert count(result.model) < before
    assert result.parameters[0] == before
    assert result.parameters[1] == count(result.model)
    # A network may ignore its pruned channels: behind a ReLU that never fires, say.
    return "pruned" if relative(masked, full) > 1e-6 else "pruned without effect"


def test_a_grouped_convolution_over_two_layers_keeps_as_many_of_each():
    """Each of its groups reads one of them; a norm sees the result while it is only masked."""
    spec = (
        (6, 3, "none", "relu"),
        [("branches", 6, "gn1", "relu", "dense"), ("grouped", 6, "gn1", "relu")],
        None,
        "mean",
    )
    rules = [
        {"op_types": ["default"], "sparsity": 0.2},
        {"op_names": ["maps.0.0"], "sparsity": 0.5},
    ]
    assert check((spec, 0, rules)) == "pruned"


def run_on_random_networks(check_plan, **options):
    """Run a check on random networks, and fail if more than a tenth of them asked nothing of it."""
    outcomes = Counter()

    @settings(deadline=None, phases=PHASES, **options)
    @given(plans())
    def run(plan):
        outcomes[check_plan(plan)] += 1

    run()
    vacuous = outcomes.total() - outcomes["pruned"]
    assert outcomes.total() >= options["max_examples"]
    assert vacuous <= 0.1 * outcomes.total(), f"{vacuous} of {outcomes.total()}: {outcomes}"


def check_graph(plan):
    """Compare the whole model as a graph, and return which of the possible outcomes it had."""
    spec, seed, rules = plan
    model = build(spec, seed)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    try:
        L1NormPruner(model, rules, example_inputs=x).compress()
        masked, plain = model.eval()(x).detach(), plain_copy(model)
        result = speedup(model, x)
    except (ConfigError, StageError) as error:
        assert re.search("channels that can be removed|nothing to cut", str(error))
        return "refused"
    graph = build_plan(plain, Plan(result.plan.cuts, {}, ("",)), x)
    assert relative(graph(x), masked) <= 1e-10
    assert count(graph) <= count(result.model)
    graph.train()(x).sum().backward()
    assert graph.eval()(x).shape == masked.shape
    return "pruned"


def test_the_captured_graph_of_a_random_network_computes_it_too():
    """What would be returned if no code could be kept: the whole model as a graph, trainable."""
    run_on_random_networks(check_graph, max_examples=3, derandomize=True)


def test_a_random_network_shrinks_to_what_its_masks_compute():
    run_on_random_networks(check, max_examples=10, derandomize=True)


@pytest.mark.slow
def test_many_random_networks_shrink_to_what_their_masks_compute():
    run_on_random_networks(check, max_examples=600)


def test_checks_that_ask_nothing_are_noticed():
    answers = itertools.cycle(["pruned", "pruned", "pruned", "refused"])
    with pytest.raises(AssertionError, match="'refused': 5"):
        run_on_random_networks(lambda plan: next(answers), max_examples=20, database=None)
