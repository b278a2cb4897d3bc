import pytest
import torch

from lilliput.ops.namespace import NAMES, namespace


def test_every_name_of_the_vocabulary_exists():
    xp = namespace(torch.zeros(1))
    assert [name for name in NAMES if not callable(getattr(xp, name, None))] == []


def test_parameters_are_tensors_too_and_other_things_are_refused():
    assert namespace(torch.nn.Parameter(torch.zeros(1))) is namespace(torch.zeros(1))
    with pytest.raises(TypeError, match="expected a tensor"):
        namespace([1.0])
