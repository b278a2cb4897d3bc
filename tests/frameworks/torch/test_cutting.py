"""Cuts of tensors."""

import numpy as np
import pytest
import torch

from lilliput.frameworks.torch.cutting import cut_all
from lilliput.graph.cuts import Cut

ROWS, COLUMNS = np.array([5, 0, 600, 7]), np.array([3, 900, 1])


@pytest.mark.parametrize("kept", [ROWS, np.arange(1, 700, 2), np.arange(0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8, torch.complex64])
def test_rows_and_columns_cut_together_are_those_cut_in_turn(kept, dtype):
    tensor = torch.randn(700, 1000).mul(9).to(dtype)
    found = cut_all(tensor, [Cut("x", 1, COLUMNS), Cut("x", 0, kept)])
    assert torch.equal(found, tensor[kept][:, COLUMNS])
    assert found.is_contiguous()


def test_a_cut_weight_stays_in_its_memory_format():
    tensor = torch.randn(16, 12, 3, 3).to(memory_format=torch.channels_last)
    rows, columns = np.arange(0, 16, 2), np.arange(0, 12, 3)
    found = cut_all(tensor, [Cut("x", 0, rows), Cut("x", 1, columns)])
    assert torch.equal(found, tensor[rows][:, columns])
    assert found.is_contiguous(memory_format=torch.channels_last)
