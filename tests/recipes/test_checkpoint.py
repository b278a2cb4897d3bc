"""What a run leaves in its folder."""

import math

import pytest

pytest.importorskip("torch")

import torch

from lilliput.errors import StateError
from lilliput.packing import pack, unpack
from lilliput.recipes.checkpoint import (
    Checkpoint,
    ModelEntry,
    is_ours_only,
    read_run,
    remove_leftovers,
)


def checkpoint(value, **fields):
    model = ModelEntry(framework="torch", factory="a:b", folder=".", seed=0)
    tensors = {"model/x": torch.full((3,), float(value))}
    made_from = {"recipe": {}}
    return Checkpoint("", made_from, 1, model, 5, tensors=tensors, **fields)


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path):
    checkpoint(1, done=2, log={"metric": 0.1 + 0.2}).save(tmp_path)
    held = Checkpoint.load(tmp_path)
    assert held.done == 2 and held.log == {"metric": 0.1 + 0.2}
    assert torch.equal(held.tensors["model/x"], torch.ones(3))


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    for value in (1, 2):
        checkpoint(value).save(tmp_path)
    assert len(list(tmp_path.glob("state-*.safetensors"))) == 1
    assert torch.equal(Checkpoint.load(tmp_path).tensors["model/x"], torch.full((3,), 2.0))


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path):
    ours = [".run.json.0123456789abcdef.lilliput", "state-0123456789abcdef.safetensors"]
    for name in (*ours, "small.onnx", ".hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "shrunk-0").mkdir()
    assert not is_ours_only(tmp_path)
    remove_leftovers(tmp_path, set())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "small.onnx"]


def test_a_file_that_is_no_run_is_refused(tmp_path):
    for text in ("", "[]", '{"format": 1}', "[" * 100_000):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(StateError, match="no readable run"):
            read_run(tmp_path)


def test_nested_values_come_back_exactly():
    value = {0: {"step": torch.tensor(3.0), "betas": (0.9, 0.999)}, "groups": [{"lr": 1e-3}]}
    value["odd"] = [None, True, math.inf, "text"]
    store = {}
    packed = pack(value, "optimizer", store, lambda x: isinstance(x, torch.Tensor))
    assert list(store) == ["optimizer/0/step"]
    assert unpack(packed, store) == value
    with pytest.raises(StateError, match="optimizer/x: a function cannot be written"):
        pack({"x": lambda: 0}, "optimizer", {}, lambda x: False)
    with pytest.raises(StateError, match="damaged"):
        unpack({"tensor": "missing"}, {})
