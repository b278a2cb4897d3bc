"""Algorithms that are still to come: the import works, and use says when they come and what to take."""

import importlib
import re

import pytest
from torch import nn

import lilliput
from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.imports.later import LATER
from lilliput.compat.nni.imports.tables import NAMES, PATHS
from lilliput.errors import StageError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.mark.parametrize("name", LATER)
def test_it_can_be_imported_and_says_on_use_when_it_comes(name):
    homes = [path for path, parts in PATHS.items() if any(name in NAMES[part] for part in parts)]
    assert homes
    for home in homes:
        found = getattr(importlib.import_module(home), name)
        with pytest.raises(
            StageError, match=rf"{name} comes with Lilliput 0\.[45].*Until then: \w"
        ):
            found(nn.Linear(2, 2), [{"sparsity": 0.5}])
        with pytest.raises(StageError, match="comes with Lilliput"):
            found.from_compressor(None)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("nni.algorithms.compression.v2.pytorch.pruning.basic_pruner", "L1NormPruner"),
        ("nni.algorithms.compression.v2.pytorch.pruning.movement_pruner", "MovementPruner"),
        ("nni.algorithms.compression.pytorch.quantization.quantizers", "QAT_Quantizer"),
        ("nni.compression.pytorch.quantization.qat_quantizer", "QAT_Quantizer"),
        ("nni.compression.torch.pruning.lottery_ticket", "LotteryTicketPruner"),
        ("nni.compression.pytorch.quantization_speedup.integrated_tensorrt", "CalibrateType"),
    ],
)
def test_the_files_of_algorithms_have_the_names_of_their_folder(path, name):
    home, _, _ = path.rpartition(".")
    found = getattr(importlib.import_module(path), name)
    assert found is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("name", LATER)
def test_what_is_to_be_taken_instead_is_there(name):
    named = re.findall(r"\b\w+(?:Pruner|Analysis)\b", LATER[name][1])
    assert all(hasattr(lilliput, x) for x in named)


def test_none_of_them_is_registered_by_now():
    """Once an algorithm is here, its old name leads to it, and its row has to go."""
    assert [name for name in LATER if name in lilliput.registry.pruners] == []
