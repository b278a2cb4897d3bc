"""The comparison of a cut model with the masked one: what does not count hides no error."""

import pytest
import torch
from torch import nn

from lilliput.frameworks.torch.compare import relative_error
from lilliput.torch import L1NormPruner, speedup


class Scores(nn.Module):
    """Returns the scores of each key for each query, and a huge number for later keys."""

    def __init__(self, filler):
        super().__init__()
        self.filler = filler
        self.first = nn.Linear(6, 16)
        self.queries, self.keys = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        x = self.first(x).relu()
        scores = self.queries(x) @ self.keys(x).transpose(1, 2)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        filler = torch.finfo(scores.dtype).min if self.filler is None else self.filler
        return scores.masked_fill(later, filler)


@pytest.mark.parametrize("filler", [-1e9, None, float("-inf")])
def test_scores_with_fillers_are_cut_and_an_error_among_them_is_seen(filler):
    torch.manual_seed(0)
    model, x = Scores(filler).double().eval(), torch.randn(2, 5, 6).double()
    L1NormPruner(model, [{"op_names": ["first"], "sparsity": 0.5}], example_inputs=x).compress()
    result = speedup(model, x)
    assert result.model.first.out_features == 8 and result.error < 1e-10
    with torch.no_grad():
        before = model(x)
        model.keys.bias[0] += 1e-6
        assert relative_error([before], [model(x)]) > 1e-9
    assert relative_error([before], [-before]) > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_precisions_are_compared_too(dtype):
    x = torch.tensor([1.0, 4.0], dtype=dtype)
    assert relative_error([x], [x + torch.tensor([0.0, 1.0], dtype=dtype)]) == 0.25
    assert relative_error([x], [x[:1]]) == float("inf")
    assert relative_error([torch.tensor([1])], [torch.tensor([2])]) == float("inf")
