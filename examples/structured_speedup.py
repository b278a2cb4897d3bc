"""Make a CNN smaller and faster: prune whole channels while it trains, cut them out, fine-tune.

    pip install 'lilliput[torch]' scikit-learn
    python examples/structured_speedup.py

Writes the folder ``digits_small``: the weights, and the plan for cutting the original class to their size.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import AGPPruner, load, measure, speedup, take_receipt

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]

# -- the model: with a shortcut, so that channels depend on each other ----------------------------


class Net(nn.Module):
    """A residual CNN."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.outer = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64))
        self.head = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x):
        """Return the scores of the ten digits."""
        x = nn.functional.max_pool2d(self.stem(x), 2)
        x = torch.relu(x + self.outer(self.inner(x)))
        return self.head(x.flatten(1))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)


def train(epochs, pruner=None):
    """Train for some epochs, with or without a pruner."""
    for epoch in range(epochs):
        model.train()
        if pruner:
            pruner.update_epoch(epoch + 1)
        for batch in training[torch.randperm(len(training))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def accuracy(model):
    """Return the accuracy on the test digits."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


train(4)
before = measure(model, images[:64], evaluate=accuracy, name="trained")

# -- prune three quarters of the channels, gradually; then cut them out ---------------------------

rules = [{"op_types": ["Conv2d"], "final_sparsity": 0.75, "end_epoch": 4}]
pruner = AGPPruner(model, rules, optimizer, pruning_algorithm="l1", example_inputs=images[:2])
pruner.compress()
train(4, pruner)
result = speedup(model, images[:2], optimizer=optimizer)  # compared with the masked model
print(result)
train(4)  # the smaller network, with the same loop and optimizer

# -- what was gained ------------------------------------------------------------------------------

after = measure(model, images[:64], evaluate=accuracy, name="small")
note = "the small model has also been trained for more epochs"
print(take_receipt(before, after, metric_name="accuracy", notes=(note,)))
result.save("digits_small")
print(f"digits_small, read again: {accuracy(load(Net(), 'digits_small')):.2%}")
