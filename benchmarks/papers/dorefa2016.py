"""Zhou et al. 2016, "DoReFa-Net": weights, activations and gradients of few bits.

    ./run python benchmarks/reproduce.py dorefa2016

W, A and G are the bits of weights, activations and gradients. As in the paper, the image is not quantized;
unlike there, the first and the last layer's weights are. The paper's figures are errors on SVHN, from 2.9 %
in float, and of AlexNet on ImageNet, from 40.3 %.
"""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from lilliput.torch import DoReFaQuantizer
from papers.harness import Budget, Paper, Row, Task


def quantized(weight: int, activation: int | None, gradient: int | None) -> Any:
    """Return a row's function: bits of weights, activations and gradients, None for float."""

    def run(task: Task) -> dict[str, Any]:
        def attach(model: nn.Module, optimizer: optim.Optimizer) -> DoReFaQuantizer:
            first: dict[str, Any] = {"quant_types": ["weight"], "quant_bits": {"weight": weight}}
            if gradient is not None:
                first["gradient_bits"] = gradient
            others = dict(first)
            if activation is not None:
                others["quant_types"] = ["weight", "input"]
                others["quant_bits"] = {"weight": weight, "input": activation}
            rules = [{"op_types": ["Linear"], **others}, {"op_names": ["1"], **first}]
            quantizer = DoReFaQuantizer(model, rules, optimizer)
            quantizer.compress()
            return quantizer

        return {"error": task.error(task.retrain(attach)[0]), "rate": 32 / weight}

    return run


PAPER = Paper(
    "dorefa2016",
    "Zhou et al. 2016, DoReFa-Net",
    {
        "W 8, A 8, G 8": Row(quantized(8, 8, 8), {"claim": "AlexNet 42.0 %"}),
        "W 1, A 32, G 32": Row(quantized(1, None, None), {"claim": "AlexNet 44.3 %"}),
        "W 1, A 2, G 6": Row(quantized(1, 2, 6), {"claim": "AlexNet 46.8 %"}),
        "W 1, A 2, G 4": Row(quantized(1, 2, 4), {"claim": "SVHN 3.0 %, AlexNet 54.0 %"}),
    },
    budget=Budget(epochs=5),
    about="Bits of weights (W), activations (A) and gradients (G); the image is not quantized.",
)
