"""Esser et al. 2020, "Learned step size quantization": few bits for weights and activations.

    ./run python benchmarks/reproduce.py lsq2020

The paper keeps the first and the last layer at 8 bits; in LeNet-300-100 that would be all but 30,000 weights,
so here every layer has few bits, but for the image, which has 8. The paper's figures are those of ResNet-18
on ImageNet, top-1 against float.
"""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from lilliput.torch import LSQQuantizer
from papers.harness import Budget, Paper, Row, Task


def quantized(bits: int) -> Any:
    """Return a row's function: weights and activations of all layers."""

    def run(task: Task) -> dict[str, Any]:
        example = task.train_set[0][: task.budget.batch]

        def attach(model: nn.Module, optimizer: optim.Optimizer) -> LSQQuantizer:
            rule = {"op_types": ["Linear"], "quant_types": ["weight", "input"]}
            rules = [
                {**rule, "quant_bits": {"weight": bits, "input": bits}},
                {**rule, "op_names": ["1"], "quant_bits": {"weight": bits, "input": 8}},
            ]
            quantizer = LSQQuantizer(model, rules, optimizer, example_inputs=example)
            quantizer.compress()
            return quantizer

        return {"error": task.error(task.retrain(attach)[0]), "rate": 32 / bits}

    return run


PAPER = Paper(
    "lsq2020",
    "Esser et al. 2020, Learned step size quantization",
    {
        "4 bits": Row(quantized(4), {"claim": "ResNet-18: 71.1 from 70.5 %"}, above_control=0.10),
        "3 bits": Row(quantized(3), {"claim": "ResNet-18: 70.2 from 70.5 %"}, above_control=0.10),
        "2 bits": Row(quantized(2), {"claim": "ResNet-18: 67.6 from 70.5 %"}),
    },
    budget=Budget(epochs=5),
    about="Weights and activations of all layers, but for the image, which has 8 bits.",
)
