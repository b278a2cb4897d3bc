"""A small network trained on scikit-learn's digits: batch norms, a residual sum, pooling, a Linear."""

from functools import cache

import torch
from torch import nn

from lilliput.torch import PTQQuantizer

ALL = [{"op_types": ["default"], "quant_types": ["weight", "input", "output"]}]


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.last_norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x) + x)
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.last_norm(self.third(x)))
        return self.head(x.mean((2, 3)))


@cache
def data():
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.images / 8 - 1).float()[:, None], torch.tensor(digits.target)


@cache
def weights():
    torch.manual_seed(0)
    (x, y), model = data(), Digits()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(8):
        for part in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model.state_dict()


def quantized(rules=None):
    """Return a trained network under calibrated quantization, and its quantizer."""
    model = Digits().eval()
    model.load_state_dict(weights())
    x = data()[0]
    quantizer = PTQQuantizer(model, rules or ALL, example_inputs=x[:8])
    quantizer.compress()
    quantizer.calibrate(list(x[:512].split(64)))
    return model, quantizer


def agreement(model, file):
    """Return how often a file and the simulation name the same digit, and how often it is right."""
    x, y = data()
    with torch.no_grad():
        wanted = model(x[1200:1264]).argmax(1)
    found = file(x[1200:1264]).argmax(1)
    return float((found == wanted).float().mean()), float((found == y[1200:1264]).float().mean())
