"""Prune a small CNN while it trains: remove 90 % of its weights and still recognize digits.

    pip install 'lilliput[torch]' scikit-learn
    python examples/prune_while_training.py

The training loop is a plain one. Pruning adds the three lines marked with an arrow.
"""

import zlib

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import AGPPruner, measure, take_receipt

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]

# -- the model and its training -------------------------------------------------------------------

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def train_epoch():
    """Go through the training digits once."""
    model.train()
    for batch in training[torch.randperm(len(training))].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def accuracy(model):
    """Return the accuracy on the test digits."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


def deflated(model):
    """Return how many bytes the weights take in a zip file."""
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    return len(zlib.compress(values.numpy().tobytes(), 9))


for _ in range(6):
    train_epoch()
before = measure(model, images[:64], evaluate=accuracy, name="dense")
zipped = deflated(model)

# -- the same training with a pruner: sparsity grows from 0 to 90 % until epoch 7 -----------------

rules = [
    {"op_types": ["Conv2d", "Linear"], "final_sparsity": 0.9, "end_epoch": 7},
    {"op_names": ["0"], "exclude": True},  # the first layer has few weights, and needs them
]
pruner = AGPPruner(model, rules, optimizer)
pruner.compress()  # ← creates the masks
for epoch in range(10):
    pruner.update_epoch(epoch)  # ← masks more weights
    train_epoch()
    zeros = sum(int((p == 0).sum()) for p in model.parameters())
    print(f"epoch {epoch:2d}: {zeros:5,d} zeros, accuracy {accuracy(model):.2%}")
pruner.strip()  # ← a plain model again, with zeros

# -- what was gained ------------------------------------------------------------------------------

after = measure(model, images[:64], evaluate=accuracy, name="pruned")
note = "the pruned model has also been trained for more epochs"
print(take_receipt(before, after, metric_name="accuracy", notes=(note,)))
print(f"zipped: {zipped:,} → {deflated(model):,} bytes")
