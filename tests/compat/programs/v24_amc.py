"""v1.9 to v2.6, first stack: AMC, which is given the loader that its evaluator takes."""

from nni.algorithms.compression.pytorch.pruning import AMCPruner
from trained_digits import loaders, test_accuracy, trained

_, val_loader = loaders()
model = trained()


def validate(val_loader, model):
    return test_accuracy(model, val_loader)


config_list = [{"op_types": ["Conv2d", "Linear"]}]
pruner = AMCPruner(
    model,
    config_list,
    validate,
    val_loader,
    model_type="mobilenet",
    dataset="digits",
    train_episode=8,
    flops_ratio=0.5,
    lbound=0.2,
    rbound=1.0,
    n_calibration_batches=1,
    channel_round=4,
)
model = pruner.compress()
