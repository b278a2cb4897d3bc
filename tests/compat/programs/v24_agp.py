"""v2.4: AGP that runs the trainer itself."""

import torch
from nni.algorithms.compression.pytorch.pruning import AGPPruner
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

model.eval()
pruner = AGPPruner(
    model,
    [{"sparsity": 0.8, "op_types": ["Conv2d"]}],
    optimizer,
    trainer,
    criterion,
    num_iterations=4,
    epochs_per_iteration=1,
    pruning_algorithm="level",
)
sparsities = []
pruner.patch_optimizer(lambda: sparsities.append((model.conv2.weight == 0).float().mean().item()))
pruner.compress()
remaining = pruner.get_pruned_weights()
