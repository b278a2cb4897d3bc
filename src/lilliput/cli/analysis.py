"""How much each layer can lose: by pruning it alone, and by quantizing it alone.

Every figure is written immediately, so that an interrupted analysis can be continued.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lilliput.cli.terminal import to_plain
from lilliput.errors import ConfigError
from lilliput.files import write_atomically
from lilliput.printing import csv_cell

CHECKPOINTS = ("sensitivity.json", "quantization_scan.json")


def check_folder(folder: Path, resume: bool) -> None:
    """Raise if a folder contains an analysis, unless it is to be resumed."""
    there = [name for name in CHECKPOINTS if (folder / name).exists()]
    if there and not resume:
        raise ConfigError(
            f"{folder}: already contains an analysis ({', '.join(there)}); continue it with --resume, or "
            "choose another folder with --output."
        )


class PruningScan:
    """Prune one layer at a time to several sparsities, and evaluate."""

    def __init__(
        self,
        model: Any,
        evaluate: Callable[..., Any],
        algorithm: str,
        sparsities: list[float] | None,
        folder: Path,
        inputs: Any,
    ) -> None:
        from lilliput.pruning.sensitivity_analysis import SensitivityAnalysis

        self.scan = SensitivityAnalysis(
            model,
            evaluate,
            sparsities,
            algorithm,
            checkpoint_dir=folder,
            example_inputs=inputs,
        )
        self.folder = folder

    @property
    def units(self) -> int:
        """The largest number of evaluations."""
        return 1 + len(self.scan.layers) * len(self.scan.sparsities)

    def run(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Scan all layers; return and write the curves."""
        for number, layer in enumerate(self.scan.layers, 1):
            note(f"pruning {layer} alone ({number} of {len(self.scan.layers)}) …")
            self.scan.analysis(specified_layers=[layer])
        write_to = self.folder / "pruning.csv"
        self.scan.export(write_to)
        rows = [
            {"layer": layer, "metrics": {str(s): m for s, m in curve.items()}}
            for layer, curve in self.scan.sensitivities.items()
        ]
        return {"baseline": self.scan.ori_metric, "layers": rows, "file": write_to}


class QuantizationScan:
    """Quantize one layer at a time, and compare the model's output."""

    def __init__(
        self,
        model: Any,
        algorithm: str,
        bits: int,
        batches: list[Any],
        evaluate: Callable[..., Any] | None,
        folder: Path,
    ) -> None:
        from lilliput.registry import find_algorithm

        self.model, self.bits, self.batches = model, bits, batches
        self.evaluate, self.folder = evaluate, folder
        self.algorithm, self.cls = algorithm, find_algorithm(algorithm)
        if self.cls.kind != "quantizer":
            raise ConfigError(f"--quantizer {algorithm}: is a {self.cls.kind}; choose ptq.")
        if not hasattr(self.cls, "calibrate"):
            raise ConfigError(
                f"--quantizer {algorithm}: is calibrated during training; choose ptq, which needs no "
                "training."
            )
        selection = self.cls(model, [{"op_types": ["default"], "quant_bits": bits}]).selection
        self.layers = [layer.name for layer in selection.chosen]

    @property
    def units(self) -> int:
        """The number of layers to measure."""
        return len(self.layers)

    def run(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Measure all layers; return and write the figures."""
        from lilliput.pruning.sensitivity_files import fingerprint, load_scan, save

        path = self.folder / "quantization_scan.json"
        made_from = {
            "weights": fingerprint(self.model),
            "algorithm": self.algorithm,
            "bits": self.bits,
            "batches": len(self.batches),
            "evaluates": self.evaluate is not None,
        }
        scan = load_scan(path, made_from)
        for number, layer in enumerate(self.layers, 1):
            if layer not in scan.metrics:
                note(f"quantizing {layer} alone ({number} of {len(self.layers)}) …")
                scan.metrics[layer] = to_plain(self._measure(layer))
                save(path, scan)
        rows = [{"layer": layer, **scan.metrics[layer]} for layer in self.layers]
        file = self.folder / "quantization.csv"
        write_csv(file, rows)
        return {"bits": self.bits, "layers": rows, "file": file}

    def _measure(self, layer: str) -> dict[str, float]:
        from lilliput.measure.timing import run_evaluation
        from lilliput.report.quantization import quantization_report

        quantizer = self.cls(self.model, [{"op_names": [layer], "quant_bits": self.bits}])
        try:
            quantizer.compress()
            quantizer.calibrate(self.batches)
            found = {"sqnr": quantization_report(quantizer, self.batches).output_sqnr}
            if self.evaluate is not None:
                found["metric"] = run_evaluation(self.evaluate, self.model)
        finally:
            quantizer.strip()
        return found


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["layer"])
    writer.writeheader()
    for row in rows:
        writer.writerow({k: csv_cell(v) if isinstance(v, str) else v for k, v in row.items()})
    write_atomically(path, text.getvalue().encode())


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON."""
    write_atomically(path, json.dumps(to_plain(data), indent=1).encode())
