"""Jacob et al. 2018, "Quantization and training ... for integer-arithmetic-only inference": executed int8.

    ./run python benchmarks/reproduce.py jacob2018

The error is that of the exported file as ONNX Runtime executes it, on integers. The paper has ResNet-50 on
ImageNet: 74.9 from 76.4 % top-1.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn, optim

from lilliput.torch import QATQuantizer, export_onnx, open_file
from papers.harness import Budget, Paper, Row, Task


def executed(task: Task) -> dict[str, Any]:
    """Train with rounding, write a file, and judge what ONNX Runtime answers."""
    example = task.train_set[0][: task.budget.batch]

    def attach(model: nn.Module, optimizer: optim.Optimizer) -> QATQuantizer:
        rules = [{"op_types": ["Linear"], "quant_types": ["weight", "input"], "quant_bits": 8}]
        quantizer = QATQuantizer(model, rules, optimizer, example_inputs=example)
        quantizer.compress()
        return quantizer

    model, quantizer = task.retrain(attach)
    simulated = task.error(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        result = export_onnx(quantizer, path, (example,))
        figures = {"error": task.error(open_file(path)), "bytes": path.stat().st_size}
    return figures | {"simulated": simulated, "integer_share": result.integer_share}


PAPER = Paper(
    "jacob2018",
    "Jacob et al. 2018, Quantization and training for integer-only inference",
    {
        "8 bits, executed": Row(
            executed, {"claim": "ResNet-50: 74.9 from 76.4 %"}, above_control=0.10
        )
    },
    budget=Budget(epochs=5),
    about="As ONNX Runtime executes the file, all multiplications on integers.",
)
