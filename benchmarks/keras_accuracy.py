"""Measure the accuracy of a Keras CNN on Fashion-MNIST in LiteRT: 80 % pruned, int8, and both.

    ./run python benchmarks/data.py fashion-mnist
    ./run python benchmarks/keras_accuracy.py

A CNN of 0.36 million weights is trained in float. From there: AGP to 80 % zeros, then QAT for
half as many epochs; QAT to int8; and the same number of epochs in float. All are executed by the LiteRT
interpreter on the 10,000 test images. One seed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from data import fashion_mnist
from keras import layers
from record import RESULTS, write_json

from lilliput.keras import AGPPruner, QATQuantizer, export_litert

RESULT = RESULTS / "keras_accuracy.json"
RULES = {"op_types": ["Conv2D", "Dense"]}
# 80 % of all weights: three quarters of them are in the first dense layer, where more can be
# removed.
PRUNED = [
    {"op_types": ["Dense"], "final_sparsity": 0.86},
    {"op_types": ["Conv2D"], "final_sparsity": 0.63},
]


def make_model() -> Any:
    inputs = x = keras.Input((28, 28, 1))
    for filters, stride in ((32, 2), (64, 2), (128, 2)):
        x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.Dropout(0.3)(x)))


def compile_model(model: Any, rate: float, steps: int) -> None:
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])


def executed(path: Path, images: Any, labels: Any) -> tuple[float, float]:
    """Return the accuracy of a file in percent, and the CPU milliseconds per 100 images."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    entry, end = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    interpreter.resize_tensor_input(entry["index"], (100, 28, 28, 1))
    interpreter.allocate_tensors()
    right, seconds = 0, []
    for start in range(0, len(images), 100):
        interpreter.set_tensor(entry["index"], images[start : start + 100])
        before = time.process_time()
        interpreter.invoke()
        seconds.append(time.process_time() - before)
        found = interpreter.get_tensor(end["index"]).argmax(1)
        right += int((found == labels[start : start + 100]).sum())
    return 100 * right / len(images), 1000 * float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--only", choices=("pruned",), help="float, and pruned and quantized")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    train, test = (
        (images.numpy().transpose(0, 2, 3, 1).astype("float32") / 255, labels.numpy())
        for images, labels in fashion_mnist()
    )
    steps = options.epochs * -(-len(train[0]) // 128)
    fit = {"x": train[0], "y": train[1], "batch_size": 128, "verbose": 0}
    model = make_model()
    compile_model(model, 2e-3, steps)
    model.fit(**fit, epochs=options.epochs)
    trained = model.get_weights()
    results: dict[str, dict[str, float]] = {}

    def note(name: str, source: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tflite"
            exported = export_litert(source, path, train[0][:32])
            accuracy, milliseconds = executed(path, *test)
            simulated = 100 * model.evaluate(*test, batch_size=1000, verbose=0)[1]
            results[name] = {
                "executed": accuracy,
                "simulated": simulated,
                "bytes": path.stat().st_size,
                "milliseconds": milliseconds,
                "integer_share": exported.integer_share,
            }
        print(f"{name:<28}", {k: round(float(v), 3) for k, v in results[name].items()}, flush=True)

    note("float", model)
    compile_model(model, 1e-3, steps)
    schedule = {"end_epoch": options.epochs // 2}
    pruner = AGPPruner(model, [{**rule, **schedule} for rule in PRUNED])
    pruner.compress()
    model.fit(**fit, epochs=options.epochs, callbacks=[pruner.callback()])
    note("AGP 80 %", model)
    kernels = [x for x in model.trainable_variables if x.name == "kernel"]
    zeros = sum(int((np.asarray(x) == 0).sum()) for x in kernels) / sum(
        np.asarray(x).size for x in kernels
    )
    print(f"zeros among all weights: {zeros:.2%}")

    compile_model(model, 5e-4, steps // 2)
    quantizer = QATQuantizer(model, [RULES], model.optimizer)
    quantizer.compress()
    model.fit(**fit, epochs=options.epochs // 2)
    note("AGP 80 %, QAT int8", quantizer)
    quantizer.strip()
    pruner.strip()

    if not options.only:
        model.set_weights(trained)
        compile_model(model, 1e-3, steps)
        quantizer = QATQuantizer(model, [RULES], model.optimizer)
        quantizer.compress()
        model.fit(**fit, epochs=options.epochs)
        note("QAT int8", quantizer)
        quantizer.strip()
        model.set_weights(trained)
        compile_model(model, 1e-3, steps)
        model.fit(**fit, epochs=options.epochs)
        note("float, the same epochs more", model)
    write_json(
        RESULT,
        {
            "epochs": options.epochs,
            "parameters": model.count_params(),
            "zeros of the pruned ones": zeros,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
