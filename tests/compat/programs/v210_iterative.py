"""v2.10, second stack: Linear in three iterations, by gradients, with a speedup at the end."""

import nni
import torch
import torch.nn.functional as F
from nni.compression.pytorch.pruning import LinearPruner
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data = torch.randn(16, 1, 8, 8, generator=generator)
        yield data, torch.randint(10, (16,), generator=generator)


def trainer(model, optimizer, criterion):
    for data, target in batches(2):
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        seen.append((model.conv2.weight.grad * model.conv2.weight.detach()).square())
        optimizer.step()


def finetuner(model):
    rows = (model.conv2.weight == 0).flatten(1).all(1)
    gone.append(rows.nonzero().flatten())
    widths.append((model.conv2.out_channels, int(rows.sum())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for data, target in batches(1):
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()


seen, gone, widths = [], [], []
model = Net()
traced_optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.01)
config_list = [{"sparsity": 0.5, "op_names": ["conv2"]}]
pruning_params = {
    "trainer": trainer,
    "traced_optimizer": traced_optimizer,
    "criterion": nn.CrossEntropyLoss(),
    "training_batches": 2,
}
pruner = LinearPruner(
    model,
    config_list,
    "taylorfo",
    3,
    finetuner=finetuner,
    speedup=True,
    dummy_input=torch.rand(16, 1, 8, 8),
    pruning_params=pruning_params,
)
pruner.compress()
_, model, masks, _, _ = pruner.get_best_result()
