"""Prune in a loop prepared by accelerate: gradient accumulation, bfloat16, and its checkpoints.

    pip install 'lilliput[accelerate]' scikit-learn
    python examples/accelerate_loop.py

Runs on one CPU as it is, and on other hardware with ``accelerate launch``.
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lilliput.integrations.accelerate import follow
from lilliput.torch import AGPPruner

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]
loader = DataLoader(TensorDataset(images[training], labels[training]), batch_size=32, shuffle=True)

# -- model, pruner, optimizer: compress first, prepare afterwards ---------------------------------

model = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
)
rules = [{"op_types": ["Linear"], "final_sparsity": 0.8, "end_epoch": 5}]
pruner = AGPPruner(model, rules)
pruner.compress()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
follow(accelerator, optimizer, pruner)  # follow its steps, and join the accelerator's checkpoints


def report():
    """Return a summary: accuracy on held-out digits and fraction of zero weights."""
    plain = accelerator.unwrap_model(model)
    with torch.no_grad():
        right = plain(images[test].to(accelerator.device)).argmax(1).cpu() == labels[test]
    weights = torch.cat([layer.weight.flatten() for layer in plain[::2]])
    zeros = (weights == 0).float().mean()
    return f"accuracy {right.float().mean():.2%}, {zeros:.1%} of the weights are zero"


# -- your loop: one line is new -------------------------------------------------------------------

for epoch in range(10):
    pruner.update_epoch(epoch)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    if epoch == 2:
        accelerator.save_state("checkpoint")  # model, optimizer, masks and progress
    accelerator.print(f"epoch {epoch}: {report()}")

# -- go back to epoch 2, including the masks; then continue to the end again ----------------------

ended = report()
accelerator.load_state("checkpoint")
accelerator.print(f"loaded:   {report()}, epoch {pruner.now_epoch}")
for epoch in range(3, 10):
    pruner.update_epoch(epoch)
pruner.strip()
accelerator.print(f"one-shot: {report()}")
accelerator.print(f"gained by training between the steps of the schedule: {ended}")
