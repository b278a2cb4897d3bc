"""v3.0: the Trainer of transformers, for a pruner on a schedule and a quantizer on top."""

import nni
import torch
import torch.nn.functional as F
from nni.compression import TransformersEvaluator
from nni.compression.pruning import AGPPruner, TaylorPruner
from nni.compression.quantization import PtqQuantizer
from torch import nn
from transformers import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x, labels=None):
        logits = self.fc2(torch.relu(self.fc1(x)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Quiet(Trainer):
    def get_train_dataloader(self):
        return [{key: value.clone() for key, value in batch.items()} for batch in batches]


generator = torch.Generator().manual_seed(1)
batches = [
    {
        "x": torch.randn(8, 20, generator=generator),
        "labels": torch.randint(5, (8,), generator=generator),
    }
    for _ in range(4)
]
model = Net()
before = {key: value.clone() for key, value in model.state_dict().items()}
args = TrainingArguments(
    "out",
    num_train_epochs=3,
    learning_rate=0.05,
    optim="sgd",
    lr_scheduler_type="constant",
    max_grad_norm=0.0,
    save_strategy="no",
    logging_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = nni.trace(Quiet)(model=model, args=args, train_dataset=[{}])
evaluator = TransformersEvaluator(trainer)

pruner = TaylorPruner(
    model, [{"op_names": ["fc1"], "sparse_ratio": 0.5}], evaluator, training_steps=2
)
scheduled = AGPPruner(pruner, interval_steps=4, total_times=2)
_, masks = scheduled.compress(max_steps=None, max_epochs=3)
raw = dict(model.named_parameters())["fc1.weight"].detach().clone()

quantizer = PtqQuantizer.from_compressor(
    scheduled, [{"op_names": ["fc2"], "target_names": ["_input_", "weight"], "quant_dtype": "int8"}]
)
weights = {key: value.clone() for key, value in model.named_parameters()}
quantizer.others = ()  # the pruner has done its work
_, calibration_config = quantizer.compress(max_steps=4, max_epochs=None)
