"""v2.10, second stack: a Lightning module and its data, in an evaluator."""

import nni
import torch
import torch.nn.functional as F
from lightning import pytorch as pl
from nni.compression.pytorch import LightningEvaluator
from nni.compression.pytorch.pruning import SlimPruner, TaylorFOWeightPruner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.bn1(self.conv1(x))).flatten(1))

    def training_step(self, batch, batch_idx):
        data, target = batch
        return F.cross_entropy(self(data), target)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@nni.trace
class Data(pl.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        generator = torch.Generator().manual_seed(1)
        data = torch.randn(64, 1, 8, 8, generator=generator)
        self.rows = TensorDataset(data, torch.randint(10, (64,), generator=generator))

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=self.batch_size)


model = Net()
before = {key: value.clone() for key, value in model.state_dict().items()}
trainer = nni.trace(pl.Trainer)(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
evaluator = LightningEvaluator(trainer, Data(batch_size=16))
config_list = [{"op_names": ["conv1"], "sparsity": 0.5}]
pruner = TaylorFOWeightPruner(model, config_list, evaluator, training_steps=3)
_, masks = pruner.compress()
after = {key: value.clone() for key, value in pruner.bound_model.state_dict().items()}

slim_model = Net()
slim_before = {key: value.clone() for key, value in slim_model.state_dict().items()}
slim = SlimPruner(
    slim_model, [{"op_names": ["bn1"], "sparsity": 0.25}], evaluator, training_epochs=2, scale=0.5
)
_, slim_masks = slim.compress()
