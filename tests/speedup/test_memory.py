"""A cut needs a few times the memory of the weights: the model, its masks, and a part of it at work."""

import subprocess
import sys

import pytest

CODE = """
import resource
import torch
from torch import nn
from lilliput.torch import L1NormPruner, speedup

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def cut(width, depth):
    layers = [x for _ in range(depth) for x in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, width), *layers, nn.Linear(width, 4)).eval()
    x = torch.randn(2, 16)
    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    speedup(model, x)
    return weights

cut(16, 15)
before = peak()
weights = cut(1024, 15)
print((peak() - before) / weights)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read in Linux's units")
def test_the_peak_of_a_cut_is_at_most_four_times_the_weights():
    """60 MB of weights; a quarter of the bound is room for the allocator of another machine."""
    command = [sys.executable, "-c", CODE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(run.stdout.split()[-1]) < 4
