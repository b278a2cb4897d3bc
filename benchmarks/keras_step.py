"""Measure the cost of compression in ``model.fit``: step / plain step, same network, same process.

    ./run python benchmarks/keras_step.py
    ./run python benchmarks/keras_step.py --backend jax --rounds 15

A CNN with batch norms (0.6 million weights, batches of 32). Variants: fixed masks, masks recomputed
every 10 steps, QAT with int8 weights per channel and uint8 activations, both together. Each round is a
``fit`` of 20 steps per variant, in random order; CPU time of the process on one thread. Reported is the
median of the per-round ratios. One process per backend.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from record import RESULTS, write_json

BACKENDS = {"tensorflow": False, "tensorflow+xla": True, "jax": True, "torch": False}
TARGETS = {"prune": 1.05, "prune, every 10 steps": 1.05, "QAT": 1.08}
STEPS = 20


def make_model(jit: bool) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 3))
    for filters, stride in ((32, 1), (64, 2), (128, 2)):
        x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, jit_compile=jit)
    return model


def prune(model: Any, every: int = 0) -> None:
    from lilliput.keras import LevelPruner

    class Again(LevelPruner):  # type: ignore[misc, valid-type]
        count = 0

        def step(self) -> None:
            self.count += 1
            if every and self.count % every == 0:
                for wrapper in self.get_modules_wrapper():
                    wrapper.if_calculated = False

    Again(model, [{"op_types": ["default"], "sparsity": 0.8}], model.optimizer).compress()


def quantize(model: Any) -> None:
    from lilliput.keras import QATQuantizer

    QATQuantizer(model, [{"op_types": ["default"]}], model.optimizer).compress()


def both(model: Any) -> None:
    prune(model)
    quantize(model)


VARIANTS = {
    "plain": lambda model: None,
    "plain again": lambda model: None,
    "prune": prune,
    "prune, every 10 steps": lambda model: prune(model, 10),
    "QAT": quantize,
    "prune and QAT": both,
}


def measure(jit: bool, rounds: int) -> dict[str, Any]:
    import numpy as np

    generator = np.random.default_rng(0)
    images = generator.standard_normal((32 * STEPS, 32, 32, 3), dtype=np.float32)
    labels = generator.integers(0, 10, len(images))
    models = {}
    for name, change in VARIANTS.items():
        models[name] = make_model(jit)
        change(models[name])
        models[name].fit(images, labels, batch_size=32, verbose=0)  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name in random.sample(list(models), len(models)):
            start = time.process_time()
            models[name].fit(images, labels, batch_size=32, verbose=0)
            seconds[name].append(time.process_time() - start)
    base = seconds["plain"]
    ratios = {
        name: statistics.median(x / y for x, y in zip(values, base, strict=True))
        for name, values in seconds.items()
    }
    return {"milliseconds": 1000 * statistics.median(base) / STEPS, "ratios": ratios}


def in_process(title: str, rounds: int) -> dict[str, Any]:
    threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(threads, "1"),
        "KERAS_BACKEND": title.partition("+")[0],
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    command = [sys.executable, __file__, "--inside", title, "--rounds", str(rounds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--backend", choices=BACKENDS, help="only this one; nothing is stored")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        random.seed(0)
        print(json.dumps(measure(BACKENDS[options.inside], options.rounds)))
        return
    results = {}
    for title in [options.backend] if options.backend else BACKENDS:
        results[title] = record = in_process(title, options.rounds)
        print(f"\n{title}: plain step {record['milliseconds']:.1f} ms", flush=True)
        for name, value in record["ratios"].items():
            target = f"   target {TARGETS[name]:.2f}" if name in TARGETS else ""
            print(f"  {name:<24}{value:6.3f}{target}", flush=True)
    if not options.backend:
        write_json(RESULTS / "keras_step.json", {"rounds": options.rounds, "backends": results})


if __name__ == "__main__":
    main()
