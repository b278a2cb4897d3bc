"""The core needs neither typer nor rich: these are what the command line is made of."""

import subprocess
import sys

WORK = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "click", "pygments"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())

import pathlib, torch
from torch import nn
from lilliput.torch import L1NormPruner, PTQQuantizer, build_report, export_onnx, speedup
import lilliput.recipes.run
import lilliput.progress

folder = pathlib.Path(sys.argv[1])
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
x = torch.randn(16, 4)
L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
cut = speedup(model, x)
quantizer = PTQQuantizer(cut.model, [{}])
quantizer.compress()
quantizer.calibrate([x])
result = export_onnx(quantizer, folder / "small.onnx", x)
quantizer.state().save(folder / "state")
build_report(result.receipt).save(folder / "report.html")
print(result.receipt)
"""


def test_compressing_exporting_and_reporting_work_without_the_command_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WORK, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "on disk" in done.stdout
    assert (tmp_path / "small.onnx").stat().st_size
    assert (tmp_path / "report.html").stat().st_size
