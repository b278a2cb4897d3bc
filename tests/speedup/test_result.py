"""What a result and a preflight say: short at the prompt, a table in a notebook, limits first."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import UnsupportedModelError
from lilliput.torch import L1NormPruner, preflight, speedup


class Fixed(nn.Module):
    """Its code has the batch written into it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(self.a(x).reshape(2, 8))


class Attention(nn.Module):
    """One head: only its features can be cut, and the default scale counts them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 8) for _ in range(3))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.out(F.scaled_dot_product_attention(q, k, v))


def pruned(model, x, **rule):
    L1NormPruner(model, [{"sparsity": 0.5, **rule}], example_inputs=x).compress()
    return model.eval()


def test_a_result_tied_to_the_batch_says_so_first():
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    result = speedup(pruned(Fixed(), x, op_names=["a"]), x)
    assert result.kind == "graph"
    assert result.notes[0].startswith("only accepts inputs with the sizes of the example inputs")
    first, *others = str(result).splitlines()
    assert first.startswith(
        "limited     only accepts inputs with the sizes of the example inputs, including the batch size"
    )
    assert not any("example's sizes" in line for line in others)


def test_outputs_that_differ_by_the_default_scale_of_attention_name_it():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6)
    model = pruned(Attention(), x, op_names=["q"])
    message = r"outputs differ by .*attention at .*test_result.py.*8 before.*scale=8 \*\* -0.5"
    with pytest.raises(UnsupportedModelError, match=message):
        speedup(model, x, allow_graph=False)
    result = speedup(model, x)
    assert "scale=8 ** -0.5" in " ".join(result.notes)


def test_results_are_short_at_the_prompt_and_tables_in_notebooks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("a<b>", nn.Linear(6, 8))
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self._modules["a<b>"](x))

    model, x = Net(), torch.randn(2, 6)
    found = preflight(model, x)
    assert repr(found) == "Preflight(1 channel group, 8 units, 1 pinned)"
    table = found._repr_html_()
    assert "a&lt;b&gt;.weight" in table and "a<b>" not in table and "model&#x27;s output" in table
    result = speedup(pruned(model, x, op_names=["a<b>"]), x)
    assert repr(result).startswith("SpeedupResult(module, 74 → 38 parameters, error ")
    assert repr(result.plan) == "Plan(module, 3 cuts, 0 attributes)"
    assert repr(found.groups) == "ChannelGroups(1 channel group, 8 units, 1 pinned)"
    assert found.groups._repr_html_().count("<tr>") == 2
    shown = result._repr_html_()
    assert "<td" in shown and "74 → 38" in shown and len(shown) < 3000


def test_measuring_leaves_no_trace_in_the_users_model():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.read = nn.Linear(6, 8), nn.Linear(8, 3)
            self.ramp = None
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            if self.ramp is None:
                self.ramp = torch.arange(1.0, 7.0)
            return self.read(self.make(x * self.ramp).relu())

    model, x = Lazy(), torch.randn(2, 6)
    L1NormPruner(model, [{"op_names": ["make"], "sparsity": 0.5}], example_inputs=x).compress()
    speedup(model, x)
    assert model.calls == 0 and model.ramp is None
    model(x.requires_grad_()).sum().backward()  # which a ramp made in inference mode would refuse
