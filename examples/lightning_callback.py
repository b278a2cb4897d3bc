"""Prune a LightningModule in ``Trainer.fit``, stop half-way, and resume from Lightning's checkpoint.

    pip install 'lilliput[lightning]' scikit-learn
    python examples/lightning_callback.py

The module is unaware of pruning: the callback follows its epochs and its optimizer, and adds masks and
progress to the checkpoints.
"""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lilliput.integrations.lightning import CompressionCallback
from lilliput.torch import AGPPruner

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
test, training = (TensorDataset(images[x], labels[x]) for x in (shuffled[:450], shuffled[450:]))

# -- an ordinary LightningModule ------------------------------------------------------------------


class Reader(LightningModule):
    """A small CNN that reads digits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

    def training_step(self, batch, batch_index):
        """Return the loss."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch, batch_index):
        """Log the accuracy."""
        right = self.net(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def fit(epochs, resume=None):
    """Train a new module for some epochs, or resume from a checkpoint; return it with its trainer."""
    module = Reader()
    rules = [{"op_types": ["Linear"], "final_sparsity": 0.9, "end_epoch": 8}]
    compression = CompressionCallback(AGPPruner(module, rules), strip=resume is not None)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[compression],
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(module, DataLoader(training, batch_size=64, shuffle=True), ckpt_path=resume)
    share = float((module.net[4].weight == 0).float().mean())
    accuracy = trainer.test(module, DataLoader(test, batch_size=450), verbose=False)[0]["accuracy"]
    print(f"after {epochs:2d} epochs: accuracy {accuracy:.2%}, {share:.1%} of the weights are zero")
    return module, trainer


_, trainer = fit(5)
trainer.save_checkpoint("half.ckpt")
module, _ = fit(12, resume="half.ckpt")  # normally in another process
weights = [layer.weight for layer in module.net if hasattr(layer, "weight")]
count, kept = sum(map(torch.numel, weights)), sum(int((w != 0).sum()) for w in weights)
print(f"non-zero weights: {count:,} → {kept:,}")
