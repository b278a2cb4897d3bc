"""Convolutions with standardized weights: filters are cut exactly, inputs stay with a reason."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.torch import L1NormPruner, preflight, speedup


class Standardized(nn.Conv2d):
    """As in BiT."""

    def forward(self, x):
        weight = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(weight, None, None, training=True, momentum=0.0, eps=1e-6)
        weight = weight.reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Scaled(nn.Conv2d):
    """As in NFNets: with a learned gain."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, x):
        weight, gain = self.weight.reshape(1, self.out_channels, -1), self.gain * self.scale
        weight = F.batch_norm(weight, None, None, weight=gain.view(-1), training=True, momentum=0.0)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class Formula(nn.Conv2d):
    """As in the paper on weight standardization."""

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
        weight = (self.weight - mean) / torch.sqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


KINDS = [Standardized, Scaled, Formula]


@pytest.mark.parametrize("conv", KINDS)
def test_filters_are_cut_where_no_standardized_filter_reads_them(conv):
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3), nn.ReLU(), conv(4, 4, 3))
    x = torch.randn(2, 3, 9, 9)
    rules = [{"op_types": [conv.__name__], "op_names": ["0"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    masked = plain_copy(model)
    result = speedup(model, x)
    assert result.kind == "module" and model[0].weight.shape[0] == 8 == model[0].out_channels
    torch.testing.assert_close(model.eval()(x), masked(x))


@pytest.mark.parametrize("conv", KINDS)
def test_inputs_of_standardized_filters_stay_with_a_reason_and_a_way_out(conv):
    model = nn.Sequential(conv(3, 16, 3), nn.ReLU(), conv(16, 4, 3))
    x = torch.randn(2, 3, 9, 9)
    wanted = (
        "standardized over their inputs.*plain convolutions before pruning.*test_standardize.py"
    )
    with pytest.raises(ConfigError, match=wanted):
        L1NormPruner(model, [{"op_types": [conv.__name__], "sparsity": 0.5}], example_inputs=x)
    assert "0.weight: the filters that read them are standardized" in str(preflight(model, x))


def test_a_deviation_that_has_no_gradient_at_zero_is_explained():
    class Deviation(nn.Conv2d):
        def forward(self, x):
            return F.conv2d(x, self.weight / (self.weight.std((1, 2, 3), keepdim=True) + 1e-5))

    model = nn.Sequential(Deviation(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
    assert "sqrt(var + eps) has finite ones" in str(preflight(model, torch.randn(2, 3, 9, 9)))
