"""Messages name the user's line, wherever the project lies."""

import importlib.util

import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.track import describe
from lilliput.torch import L1NormPruner, preflight, speedup

NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(self.a(x).view(-1, 8))

class Sorted(Net):
    def forward(self, x):
        return self.b(self.a(x).sort(-1).values)
"""

FOLDERS = ("lilliput", "torch", "a b é/lilliput/torch")


@pytest.fixture(params=FOLDERS)
def network(request, tmp_path):
    """A user's module in a folder with the name of a package."""
    path = tmp_path / request.param / "network.py"
    path.parent.mkdir(parents=True)
    path.write_text(NETWORK, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("network", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_line_that_cannot_run_is_named_in_any_folder(network):
    model, x = network.Net(), torch.randn(4, 6)
    L1NormPruner(model, [{"op_names": ["a"], "sparsity": 0.5}], example_inputs=x).compress()
    with pytest.raises(UnsupportedModelError, match=r"at network\.py:9 \(return self\.b"):
        speedup(model, x, allow_graph=False)


def test_the_line_that_pins_channels_is_named_in_any_folder(network):
    assert "network.py:13" in str(preflight(network.Sorted(), torch.randn(4, 6)))


def test_an_error_inside_torch_is_traced_to_the_line_that_called_it():
    def calls(x):
        return nn.functional.linear(x, torch.ones(2, 3))

    with pytest.raises(RuntimeError) as caught:
        calls(torch.ones(2, 4))
    assert "test_track.py" in describe(caught.value)
