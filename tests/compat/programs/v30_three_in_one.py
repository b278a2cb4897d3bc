"""v3.0: pruning, quantization and distillation at once; the teacher is wider, so a layer is projected."""

import nni
import torch
import torch.nn.functional as F
from nni.compression import TorchEvaluator
from nni.compression.distillation import Adaptive1dLayerwiseDistiller
from nni.compression.pruning import LevelPruner
from nni.compression.quantization import QATQuantizer
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(12, width)
        self.fc2 = nn.Linear(width, 5)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data = torch.randn(16, 12, generator=generator)
        yield data, torch.randint(5, (16,), generator=generator)


def training_step(batch, model):
    data, target = batch
    output = model(data)
    return F.cross_entropy(output, target), output


def training_func(model, optimizer, training_step, lr_scheduler, max_steps, max_epochs):
    for batch in batches(max_steps):
        optimizer.zero_grad()
        loss, _ = training_step(batch, model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


losses = []
model, teacher = Net(8), Net(24)
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.1)
evaluator = TorchEvaluator(training_func, optimizer, training_step)
example = next(iter(batches(1)))[0]
start = {key: value.detach().clone() for key, value in model.state_dict().items()}

pruner = LevelPruner(model, [{"op_names": ["fc1"], "sparse_ratio": 0.5}], evaluator)
q_config_list = [{"op_names": ["fc2"], "target_names": ["weight"], "quant_dtype": "int8"}]
quantizer = QATQuantizer.from_compressor(pruner, q_config_list, quant_start_step=0)
distiller = Adaptive1dLayerwiseDistiller.from_compressor(
    quantizer,
    [{"op_types": ["Linear"], "op_names": ["fc1"], "lambda": 0.5, "link": "auto"}],
    teacher,
    lambda batch, model: model(batch[0]),
)
distiller.track_forward(example)
fused = distiller.fused_compressors
distilled = distiller.compress(max_steps=5, max_epochs=None)
masks = distiller.get_masks()
calibration_config = quantizer.get_calibration_config()
