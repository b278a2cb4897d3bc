"""v2.4: Slim that trains under its penalty inside compress()."""

import torch
from nni.algorithms.compression.pytorch.pruning import SlimPruner
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


def trainer(model, optimizer, criterion, epoch, scheduler=None, log_interval=100):
    assert scheduler is None and model.training
    calls.append(epoch)
    for data, target in batches(2):
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        optimizer.step()


calls = []
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
before = {key: value.clone() for key, value in model.state_dict().items()}

pruner = SlimPruner(
    model,
    [{"sparsity": 0.5, "op_types": ["BatchNorm2d"]}],
    optimizer,
    trainer,
    criterion,
    sparsifying_training_epochs=3,
    scale=0.5,
)
pruner.compress()
