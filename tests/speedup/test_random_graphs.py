"""Random networks: the shrunk model computes what the masked one computes, whatever the graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_nets import build, randomize, specs
from torch import nn

from lilliput.errors import ConfigError
from lilliput.pruning import L1NormPruner
from lilliput.speedup.collect import channel_groups
from lilliput.speedup.shrink import speedup

shares = st.sampled_from([0.2, 0.34, 0.5, 0.7, 0.95])


@st.composite
def plans(draw):
    """Return a network, a seed, and the sparsity of each kind of layer."""
    rules = [{"op_types": ["default"], "sparsity": draw(shares)}]
    rules += [{"op_types": ["Linear"], "sparsity": draw(shares)}]
    if draw(st.booleans()):
        rules += [{"op_names": ["maps.0.0"], "exclude": True}]
    return draw(specs), draw(st.integers(0, 99)), rules


def count(model):
    return sum(p.numel() for p in model.parameters())


def relative(a, b):
    return float((a - b).abs().max() / b.abs().max())


def check(plan, allow_graph=True):
    spec, seed, rules = plan
    model = build(spec, seed)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    full, before = model.eval()(x).detach(), count(model)
    try:
        L1NormPruner(model, rules, example_inputs=x).compress()
    except ConfigError as error:  # everything is excluded, or tied to what is
        assert "no selected layer has channels that can be removed" in str(error)
        return None
    masked = model(x).detach()
    result = speedup(model, x, allow_graph=allow_graph)
    note(str(result))
    assert relative(result.model(x).detach(), masked) <= 1e-10
    assert relative(masked, full) > 1e-6  # the check has teeth
    assert count(result.model) < before
    assert result.parameters == (before, count(result.model))
    return result


@settings(max_examples=24, deadline=None, derandomize=True)
@given(plans())
def test_a_random_network_shrinks_to_what_its_masks_compute(plan):
    check(plan)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(plans())
def test_many_random_networks_shrink_to_what_their_masks_compute(plan):
    check(plan)
