import pytest

from lilliput.quantization.grids import bits_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"quant_bits": 4}, 4), ({"quant_bits": {"weight": 3, "input": 8}}, 3), ({}, 8)],
)
def test_bits_are_read_from_a_number_or_by_tensor(config, expected):
    assert bits_of(config, "weight") == expected
