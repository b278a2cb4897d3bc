"""Every example runs as it is, and what it prints at the end is true.

Those that take more than four seconds of CPU are ``slow``: ``./run test -m slow``.
"""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lilliput.recipes import load_recipe
from lilliput.recipes import run as run_recipe

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example in an empty folder and return what it prints; importing torch anew takes seconds."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def call(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield call
    torch.set_num_threads(threads)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


def row(text, label):
    """Return the two columns of a row of a receipt."""
    found = re.search(rf"^{re.escape(label)} +([\d.,]+)\D* +([\d.,]+)", text, re.MULTILINE)
    assert found, text
    return tuple(float(value.replace(",", "")) for value in found.groups())


def percent(text, label):
    found = re.search(rf"{label} +([\d.]+)%", text)
    assert found, text
    return float(found[1])


def test_every_example_is_tested_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    here, table = (Path(x).read_text() for x in (__file__, EXAMPLES / "README.md"))
    assert names
    assert all(f'"{name}"' in here and f"]({name})" in table for name in names)


def test_prune_while_training(run):
    out = run("prune_while_training.py")
    assert row(out, "non-zeros") == (29066, 3261)
    before, after = row(out, "accuracy")
    assert after > 0.93
    assert after > before - 0.03
    large, small = re.search(r"zipped: ([\d,]+) → ([\d,]+) bytes", out).groups()
    assert int(large.replace(",", "")) > 5 * int(small.replace(",", ""))
    assert "masks only" in out


@pytest.mark.slow
def test_structured_speedup(run, tmp_path):
    out = run("structured_speedup.py")
    assert "removed     96 of 128 units in 2 channel groups" in out
    assert row(out, "parameters") == (85130, 7466)
    before, after = row(out, "accuracy")
    assert after > before - 0.03
    assert percent(out, "digits_small, read again:") / 100 == pytest.approx(after, abs=1e-3)
    assert (tmp_path / "digits_small" / "lilliput.json").is_file()


@pytest.mark.slow
@needs("onnxruntime")
@pytest.mark.parametrize("name", ["ptq_int8.py", "qat_int8.py"])
def test_integers_are_executed(run, tmp_path, name):
    out = run(name)
    assert "3 of 3 layers run on integers, 100.0% of the multiplications" in out
    simulated = percent(out, r"int8, simulated[^:]*:")
    executed = percent(out, "int8, executed:")
    assert simulated > 95
    assert abs(simulated - executed) < 1
    large, small = row(out, "bytes on disk")
    assert large > 3 * small
    file = "digits_ptq.onnx" if name.startswith("ptq") else "digits_int8.onnx"
    assert (tmp_path / file).stat().st_size == small


def test_a_custom_pruner(run):
    out = run("custom_pruner.py")
    rows = re.findall(r"^ +(\d+)% +([\d.]+)% +[\d.]+% +([\d.]+)%", out, re.MULTILINE)
    found = {int(sparsity): (float(each), float(lamp)) for sparsity, each, lamp in rows}
    assert list(found) == [70, 80, 90, 95]
    assert all(found[sparsity][1] > found[sparsity][0] + 5 for sparsity in (90, 95))


def test_a_custom_quantizer(run, tmp_path):
    out = run("custom_quantizer.py")
    assert "values in each layer: [3, 3, 3]" in out
    assert percent(out, "three values, fine-tuned:") > 95
    assert (tmp_path / "digits_ternary.safetensors").is_file()


@needs("lightning")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
def test_lightning(run, tmp_path):
    out = run("lightning_callback.py")
    assert re.search(r"after  5 epochs: accuracy 9[\d.]+%, 78.8% of the weights are zero", out)
    assert re.search(r"after 12 epochs: accuracy 9[\d.]+%, 90.0% of the weights are zero", out)
    assert "non-zero weights: 33,696 → 3,629" in out
    assert (tmp_path / "half.ckpt").is_file()


@pytest.mark.slow
@needs("transformers", "accelerate")
def test_transformers(run, tmp_path):
    out = run("transformers_trainer.py")
    assert row(out, "non-zeros") == (39610, 13466)
    before, after = row(out, "accuracy")
    assert after > before - 0.03
    (state,) = tmp_path.glob("digits_vit/checkpoint-*/lilliput/0_AGPPruner/lilliput.json")
    assert state.is_file()
    assert (tmp_path / "digits_vit" / "pruned" / "model.safetensors").is_file()


@needs("accelerate")
def test_accelerate(run):
    out = run("accelerate_loop.py")
    saved, loaded = (
        re.search(rf"{word} +(accuracy .*zero)", out)[1] for word in ("epoch 2:", "loaded:")
    )
    assert saved == loaded
    assert "80.0% of the weights are zero" in out.splitlines()[-1]
    assert percent(out, "schedule: accuracy") > percent(out, "one-shot: accuracy") + 2


@pytest.mark.slow
@needs("onnxruntime")
def test_the_recipe(run, tmp_path):
    recipe = load_recipe(EXAMPLES / "recipe" / "recipe.yaml")
    result = run_recipe(recipe, tmp_path / "run", progress=False)
    before, after = result.receipt.before, result.receipt.after
    assert after.name == "small_int8.onnx"
    assert before.bytes > 10 * after.bytes
    assert after.metric > before.metric - 0.03
    assert result.report.is_file()


def in_a_new_process(command, folder, timeout=240, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes(tmp_path):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = in_a_new_process([*launch, str(EXAMPLES / "ddp.py")], tmp_path)
    found = re.fullmatch(r"stripped: accuracy (\d\.\d+), sparsity (\d\.\d+)", out.splitlines()[-1])
    assert found, out
    assert float(found[1]) > 0.9
    assert float(found[2]) == 0.8


@pytest.mark.slow
@needs("keras", "tensorflow", "ai_edge_litert")
def test_keras(tmp_path):
    command = [str(EXAMPLES / "keras_fit.py"), "--epochs", "3", "--output", "digits.tflite"]
    environment = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    out = in_a_new_process(command, tmp_path, **environment)
    assert "3 of 3 layers run on integers, 100.0%" in out
    simulated, executed = (percent(out, f"int8, {how}") for how in ("simulated", "executed"))
    assert abs(simulated - executed) < 1
    assert (tmp_path / "digits.tflite").stat().st_size < 40_000
