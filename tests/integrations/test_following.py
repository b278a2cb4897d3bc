"""What the callbacks share: states as plain data, and a line to read where a library is missing."""

import importlib
import sys

import pytest
import torch
from torch import nn

from lilliput.errors import MissingExtraError, StateError
from lilliput.integrations.following import Following, pack, unpack
from lilliput.torch import AGPPruner, LevelPruner, QATQuantizer


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    pruner = AGPPruner(model, [{"final_sparsity": 0.5, "end_epoch": 2}])
    following = Following([pruner, QATQuantizer(model, [{"op_types": ["Linear"]}])])
    following.attach(model)
    return model, following


def test_packed_states_pass_the_safe_loader_and_come_back_exactly(tmp_path):
    model, following = make()
    following.start(epoch=1, step=4)
    model(torch.randn(4, 8))
    torch.save(pack(following.states()), tmp_path / "states.pt")
    states = unpack(torch.load(tmp_path / "states.pt", weights_only=True))
    _, other = make()
    other.load(states)
    assert other.compressors[0].now_epoch == 1
    for ours, theirs in zip(following.states(), other.states(), strict=True):
        assert ours.layers == theirs.layers
        for layer, tensors in ours.tensors.items():
            for key, tensor in tensors.items():
                assert torch.equal(tensor, theirs.tensors[layer][key])


@pytest.mark.parametrize(
    "packed", [{}, [], None, {"states": "[", "tensors": []}, {"states": "[{}]"}]
)
def test_damaged_states_are_refused(packed):
    with pytest.raises(StateError, match="no readable compression state"):
        unpack(packed)


def test_states_from_the_future_are_refused():
    with pytest.raises(StateError, match="upgrade Lilliput"):
        unpack({"format": 2})


def test_the_states_of_other_compressors_are_refused():
    _, following = make()
    pruner = LevelPruner(nn.Linear(4, 4), [{"sparsity": 0.5}])
    with pytest.raises(StateError, match="holds the states of .*QATQuantizer.* expected those of"):
        Following([pruner]).load(following.states())


def test_an_epoch_is_announced_once():
    _, following = make()
    told = []
    for compressor in following.compressors:
        compressor.update_epoch = told.append
    for step in range(6):
        following.start(epoch=step // 3, step=step)
    assert told == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("lightning", ["lightning", "lightning.pytorch", "pytorch_lightning"]),
        ("transformers", ["transformers"]),
        ("accelerate", ["accelerate"]),
    ],
)
def test_a_missing_library_is_said_in_one_line(monkeypatch, name, modules):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"lilliput.integrations.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'lilliput\[{name}\]'$"):
        importlib.import_module(f"lilliput.integrations.{name}")
