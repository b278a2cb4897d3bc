"""Prune a small CNN while two processes train it: gradual pruning under DistributedDataParallel.

Run it on the CPU, with as many processes as you like:

    torchrun --nproc-per-node 2 examples/ddp.py

It takes a few seconds. Needs scikit-learn, for its 1797 handwritten digits of 8 × 8 pixels.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lilliput.torch import AGPPruner

epochs = 10
batch_size = 64  # over all processes
sparsity = 0.8  # fraction of the weights to remove
pruning_ends = 6  # the last epoch in which more weights are masked; the rest is recovery

# -- the processes --------------------------------------------------------------------------------

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
torch.manual_seed(0)

# -- the data: every process has all of it, and trains on its part of each batch ------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
held_out, training = shuffled[:360], shuffled[360:]

# -- the model: wrapped by DDP first, then pruned; the other order works as well ------------------

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=3e-3)
rules = [{"final_sparsity": sparsity, "end_epoch": pruning_ends, "frequency": 1}]
pruner = AGPPruner(parallel, rules, optimizer)
pruner.compress()


def report() -> str:
    """Return a summary: accuracy on held-out digits and fraction of zero weights."""
    with torch.no_grad():
        right = model(images[held_out]).argmax(1) == labels[held_out]
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])
    return f"accuracy {right.float().mean():.3f}, sparsity {(weights == 0).float().mean():.3f}"


# -- the training: only the call of update_epoch is specific to pruning ---------------------------

for epoch in range(epochs):
    pruner.update_epoch(epoch)
    order = training[torch.randperm(len(training))]  # the same in all processes: the same seed
    for batch in order.split(batch_size):
        share = batch[rank::ranks]
        if len(batch) == batch_size:  # a smaller last batch would desynchronize the processes
            optimizer.zero_grad()
            cross_entropy(parallel(images[share]), labels[share]).backward()
            optimizer.step()
    if rank == 0:
        print(f"epoch {epoch:2d}: {report()}")

# -- the result: a plain model with zeros in it ---------------------------------------------------

pruner.strip()
if rank == 0:
    print(f"stripped: {report()}")
dist.barrier()  # wait until all processes are done
dist.destroy_process_group()
