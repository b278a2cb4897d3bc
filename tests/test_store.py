"""Folders of JSON and tensors: those in ``tests/stores`` were written before there was one store."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.errors import StateError
from lilliput.files import make_folder
from lilliput.pruning import sensitivity_files
from lilliput.recipes.checkpoint import Checkpoint
from lilliput.speedup.saved import _Document as Shrunk
from lilliput.store import NAME, StateFile, file_of, read_document, read_tensors, write_pair
from lilliput.torch import CompressionState, LevelPruner, load

STORES = Path(__file__).parent / "stores"


def net(hidden=8):
    model = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_((torch.arange(p.numel()).reshape(p.shape) * (7 + number)) % 11 - 5.0)
    return model


def assert_same_files(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_state_is_read_and_written_byte_by_byte_as_before(tmp_path):
    state = CompressionState.load(STORES / "state")
    model = net()
    pruner = LevelPruner(model, [{"op_names": ["0"], "sparsity": 0.5}])
    pruner.load_state(state)
    pruner.compress()
    sizes, pruned = net()[0].weight.abs(), model[0].weight == 0
    assert pruned.sum() == 16 and sizes[pruned].max() <= sizes[~pruned].min()
    pruner.state().save(tmp_path)
    assert_same_files(STORES / "state", tmp_path)


def test_a_shrunk_model_is_read_and_written_byte_by_byte_as_before(tmp_path):
    model = load(net(), STORES / "shrunk")
    assert tuple(model[0].weight.shape) == (4, 4)
    norms = net()[0].weight.abs().sum(1)
    assert torch.equal(model[0].weight.abs().sum(1).sort().values, norms.sort().values[4:])
    document = read_document(STORES / "shrunk", Shrunk, "shrunk model")
    file = document.tensors
    data = read_tensors(STORES / "shrunk" / file.file, file.sha256, "weights")
    write_pair(tmp_path, NAME, document.model_dump_json(indent=1), file.file, data)
    assert_same_files(STORES / "shrunk", tmp_path)


def test_a_run_is_read_and_written_byte_by_byte_as_before(tmp_path):
    run = Checkpoint.load(STORES / "run")
    assert (run.done, run.units, run.log) == (1, 3, {"loss": [1.5]})
    assert torch.equal(run.tensors["model/0.weight"], net()[0].weight)
    run.save(tmp_path)
    assert_same_files(STORES / "run", tmp_path)


def test_a_sensitivity_run_is_read_and_written_byte_by_byte_as_before(tmp_path):
    folder, model = STORES / "sensitivity", net()
    source = {"model": sensitivity_files.fingerprint(model), "goal": 0.5}
    progress = sensitivity_files.load_progress(folder / "progress.json", source)
    scan_name = "sensitivity_before_round_1.json"
    scan = sensitivity_files.load_scan(folder / scan_name, source)
    assert scan.find("0", 0.5) == 0.8
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    sensitivity_files.load_model(folder, progress, other)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    sensitivity_files.save(tmp_path / "progress.json", progress)
    sensitivity_files.save(tmp_path / scan_name, scan)
    written = sensitivity_files.save_model(tmp_path / progress.tensors, other)
    assert written == (progress.tensors, progress.sha256)
    assert_same_files(folder, tmp_path)


LOADS = {
    "state": lambda folder: CompressionState.load(folder),
    "shrunk": lambda folder: load(net(), folder),
    "run": lambda folder: Checkpoint.load(folder),
}


@pytest.mark.parametrize("kind", LOADS)
def test_damage_to_either_file_is_found(tmp_path, kind):
    for number, damage in enumerate((flip_last_byte, Path.unlink)):
        for suffix in (".json", ".safetensors"):
            folder = tmp_path / f"{number}{suffix}"
            shutil.copytree(STORES / kind, folder)
            damage(next(folder.glob(f"*{suffix}")))
            with pytest.raises(StateError, match="damaged|no readable"):
                LOADS[kind](folder)


def flip_last_byte(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_pair_is_complete_or_the_old_one(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "pair")
    first = file_of(StateFile, b"first")
    write_pair(folder, NAME, '{"n": 1}', first.file, b"first")
    original = write_pair.__globals__["write_atomically"]

    def crash_at_the_document(path, data):
        if path.name == NAME:
            raise OSError("power cut")
        original(path, data)

    monkeypatch.setitem(write_pair.__globals__, "write_atomically", crash_at_the_document)
    with pytest.raises(OSError, match="power cut"):
        write_pair(folder, NAME, '{"n": 2}', file_of(StateFile, b"second").file, b"second")
    assert (folder / NAME).read_text() == '{"n": 1}'
    assert read_tensors(folder / first.file, first.sha256, "tensors") == b"first"
