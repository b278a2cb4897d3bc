"""v3.0: quantization with a Lightning trainer, trained and calibrated."""

import nni
import torch
import torch.nn.functional as F
from lightning import pytorch as pl
from nni.compression import LightningEvaluator
from nni.compression.quantization import PtqQuantizer, QATQuantizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 16)
        self.norm = nn.BatchNorm1d(16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))

    def training_step(self, batch, batch_idx):
        data, target = batch
        return F.cross_entropy(self(data), target)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(data, target), batch_size=16)


generator = torch.Generator().manual_seed(1)
data = torch.randn(64, 20, generator=generator)
target = torch.randint(5, (64,), generator=generator)
trainer = nni.trace(pl.Trainer)(
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
evaluator = LightningEvaluator(trainer, nni.trace(Data)())
config_list = [
    {
        "op_types": ["Linear"],
        "target_names": ["_input_", "weight"],
        "quant_dtype": "int8",
        "target_settings": {"weight": {"granularity": "out_channel"}},
    }
]

trained = Net()
before = {key: value.clone() for key, value in trained.state_dict().items()}
qat = QATQuantizer(trained, config_list, evaluator)
_, qat_config = qat.compress(max_steps=None, max_epochs=2)
raw = dict(trained.named_parameters())["fc2.weight"].detach().clone()

calibrated = Net()
ptq_before = {key: value.clone() for key, value in calibrated.state_dict().items()}
ptq = PtqQuantizer(calibrated, config_list, evaluator)
_, ptq_config = ptq.compress(max_steps=3, max_epochs=None)
ptq.unwrap_model()
ptq_after = {key: value.clone() for key, value in calibrated.state_dict().items()}
