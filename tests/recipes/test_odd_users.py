"""What users' own functions may give, and what a run makes of it."""

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StateError
from lilliput.recipes import run

pytest.importorskip("onnxruntime")


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, z):
        return self.head(torch.relu(self.one(x) + self.two(z)))


def batches(count=2):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 4, generator=draw), torch.randint(3, (8,), generator=draw))
        for _ in range(count)
    ]


@pytest.fixture
def mine(monkeypatch):
    """A module ``mine`` with a tiny model, its data and its evaluation."""
    module = ModuleType("mine")
    module.build = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    module.batches = batches
    module.accuracy = lambda model: 0.5
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def go(folder, steps, **keys):
    recipe = {"lilliput": 1, "model": "mine:build", "data": "mine:batches"}
    recipe |= {"loss": "cross_entropy", "evaluate": "mine:accuracy", "steps": steps} | keys
    return run(recipe, folder, progress=False)


FINETUNE = {"finetune": {"epochs": 1}}
EXPORT = {"export": "onnx", "file": "a.onnx"}


def test_two_inputs_train_and_calibrate(mine, tmp_path):
    mine.build = TwoInputs
    mine.batches = lambda: [((x, x + 1), y) for x, y in batches()]
    quantize = {"quantize": "ptq", "config": [{"op_types": ["Linear"]}]}
    assert go(tmp_path / "run", [FINETUNE, quantize, EXPORT]).receipt.after.bytes


def test_the_receipt_is_of_what_a_run_ended_with(mine, tmp_path):
    receipt = go(tmp_path / "run", [EXPORT, FINETUNE]).receipt
    assert receipt.after.name == "after finetune"
    assert receipt.after.runtime.startswith("PyTorch")
    assert receipt.max_difference is None


def test_a_file_is_compared_with_a_file(mine, tmp_path):
    receipt = go(tmp_path / "run", [FINETUNE, EXPORT]).receipt
    assert receipt.before.runtime == receipt.after.runtime
    assert receipt.after.runtime.startswith("ONNX Runtime")


def test_a_metric_that_is_no_number_is_told(mine, tmp_path):
    mine.accuracy = lambda model: math.nan
    assert "evaluate returned nan" in str(go(tmp_path / "run", [FINETUNE]).receipt)


def test_a_loss_that_is_no_number_ends_the_run(mine, tmp_path):
    mine.batches = lambda: [(x * math.nan, y) for x, y in batches()]
    with pytest.raises(AlgorithmError, match="loss is nan in epoch 1"):
        go(tmp_path / "run", [FINETUNE])


def test_batches_of_three_are_told_how_to_go_on(mine, tmp_path):
    mine.batches = lambda: [(x, y, y) for x, y in batches()]
    with pytest.raises(ConfigError, match=r"batch of 3 items.*inputs: module:function"):
        go(tmp_path / "run", [FINETUNE])


def test_another_model_from_train_is_refused(mine, tmp_path):
    mine.train = lambda model, optimizer, batches: nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="train: the function returned another model"):
        go(tmp_path / "run", [FINETUNE], train="mine:train", loss=None)


def test_a_result_that_is_gone_is_missed(mine, tmp_path):
    go(tmp_path / "run", [EXPORT])
    (tmp_path / "run" / "a.onnx").unlink()
    recipe = {"lilliput": 1, "model": "mine:build", "data": "mine:batches", "steps": [EXPORT]}
    recipe |= {"loss": "cross_entropy", "evaluate": "mine:accuracy"}
    with pytest.raises(StateError, match="a.onnx is missing"):
        run(recipe, tmp_path / "run", resume=True, progress=False)


def test_a_metric_is_called_by_its_function_if_that_says_something(mine, tmp_path):
    mine.evaluate = mine.accuracy
    assert go(tmp_path / "a", [FINETUNE]).receipt.metric_name == "accuracy"
    assert go(tmp_path / "b", [FINETUNE], evaluate="mine:evaluate").receipt.metric_name == "metric"
