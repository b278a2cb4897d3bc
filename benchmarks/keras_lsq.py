"""LSQ in 4 bits on Keras and on torch: the same network, initial weights, batches and steps.

    ./run python benchmarks/data.py fashion-mnist
    KERAS_BACKEND=jax ./run python benchmarks/keras_lsq.py

A small CNN is trained on Fashion-MNIST for some epochs in float, on torch. From those weights, LSQ learns all
layers in 4 bits (weights and inputs) for two epochs on torch and on the Keras backend of KERAS_BACKEND,
TensorFlow by default. Accuracy is simulated, on the 10,000 test images. One seed. A second run on torch,
from weights that differ in their last digits, shows how much of a difference is random.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import torch
from data import fashion_mnist
from keras import layers
from record import RESULTS, write_json
from torch import nn
from torch.nn import functional as F

from lilliput.quantization.lsq import LSQQuantizer

RULES = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input"], "quant_bits": 4}]
BATCH, RATE = 128, 1e-3
Data = tuple[Any, Any]


def torch_model() -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        parts += [conv, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def keras_model(source: nn.Sequential) -> Any:
    """Return the same network with the weights of the torch model."""
    inputs = x = keras.Input((28, 28, 1))
    for filters in (16, 32, 64):
        x = layers.ZeroPadding2D(1)(x)
        x = layers.Conv2D(filters, 3, strides=2, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    values: list[Any] = []
    for module in source:
        if isinstance(module, nn.BatchNorm2d):
            parts = (module.weight, module.bias, module.running_mean, module.running_var)
            values += [x.detach().numpy().copy() for x in parts if x is not None]
        elif isinstance(module, nn.Conv2d):
            values.append(module.weight.detach().numpy().transpose(2, 3, 1, 0).copy())
        elif isinstance(module, nn.Linear):
            values += [module.weight.detach().numpy().T.copy(), module.bias.detach().numpy().copy()]
    model.set_weights(values)
    return model


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate: half a cosine, down to zero."""
    return RATE * 0.5 * (1 + float(np.cos(np.pi * step / steps)))


def batches(data: Data, epochs: int) -> Any:
    """Yield the batches of all epochs, in the same order each time."""
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(data[0]))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            index = order[start : start + BATCH]
            yield data[0][index], data[1][index]


def train_torch(model: Any, optimizer: Any, data: Data, epochs: int) -> None:
    model.train()
    steps = epochs * (len(data[0]) // BATCH)
    for step, (x, y) in enumerate(batches(data, epochs)):
        optimizer.param_groups[0]["lr"] = rate_at(step, steps)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    model.eval()


def train_keras(model: Any, data: Data, epochs: int) -> None:
    steps = epochs * (len(data[0]) // BATCH)
    for step, (x, y) in enumerate(batches(data, epochs)):
        model.optimizer.learning_rate = rate_at(step, steps)
        model.train_on_batch(x.transpose(0, 2, 3, 1), y)


@torch.no_grad()
def torch_accuracy(model: Any, data: Data) -> float:
    scores = [model(x) for x in torch.from_numpy(data[0]).split(500)]
    return 100 * float((torch.cat(scores).argmax(1).numpy() == data[1]).mean())


def keras_accuracy(model: Any, data: Data) -> float:
    scores = model.predict(data[0].transpose(0, 2, 3, 1), batch_size=500, verbose=0)
    return 100 * float((scores.argmax(1) == data[1]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--float-epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = (
        (images.numpy().astype("float32") / 255, labels.numpy())
        for images, labels in fashion_mnist()
    )
    model = torch_model()
    adam = torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-7)
    train_torch(model, adam, train, options.float_epochs)
    results = {"float, torch": torch_accuracy(model, test)}
    other = keras_model(model)
    results["the same weights, Keras"] = keras_accuracy(other, test)
    print(results, flush=True)

    for name, factor in (("torch", 1.0), ("torch, last digits changed", 1 + 1e-6)):
        copy = torch_model()
        copy.load_state_dict({key: value * factor for key, value in model.state_dict().items()})
        adam = torch.optim.Adam(copy.parameters(), lr=RATE, eps=1e-7)
        LSQQuantizer(copy, RULES, adam, torch.zeros(1, 1, 28, 28)).compress()
        train_torch(copy, adam, train, options.epochs)
        results[f"LSQ W4A4, {name}"] = torch_accuracy(copy, test)
        print(results, flush=True)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    other.compile(keras.optimizers.Adam(RATE), loss)
    LSQQuantizer(other, RULES, other.optimizer).compress()
    train_keras(other, train, options.epochs)
    backend = keras.backend.backend()
    results[f"LSQ W4A4, Keras on {backend}"] = keras_accuracy(other, test)
    print(results, flush=True)
    write_json(
        RESULTS / f"keras_lsq_{backend}.json", {"epochs": options.epochs, "results": results}
    )


if __name__ == "__main__":
    main()
