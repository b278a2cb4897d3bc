"""v1.7 to v2.6, first stack: AutoCompress, whose rounds anneal, train by ADMM and cut."""

import torch
from nni.algorithms.compression.pytorch.pruning import AutoCompressPruner
from trained_digits import loaders, test_accuracy, trained

train_loader, val_loader = loaders()
given = model = trained()
epochs = []


def trainer(model, criterion, optimizer, epoch, callback):
    epochs.append(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        callback()
        optimizer.step()


def evaluator(model):
    return test_accuracy(model, val_loader)


config_list = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
dummy_input = torch.randn(2, 1, 8, 8)
pruner = AutoCompressPruner(
    model,
    config_list,
    trainer=trainer,
    evaluator=evaluator,
    dummy_input=dummy_input,
    num_iterations=2,
    optimize_mode="maximize",
    base_algo="l1",
    cool_down_rate=0.4,
    admm_num_iterations=3,
    admm_training_epochs=1,
    row=1e-2,
    experiment_data_dir="./",
)
before = evaluator(model)
model = pruner.compress()
after = evaluator(model)
pruner.export_model(model_path="small.pth")
