"""The Keras façade: its names, and their likeness to those of torch."""

import lilliput
import lilliput.keras


def test_every_public_name_is_there():
    assert len(lilliput.keras.__all__) > 50
    assert all(hasattr(lilliput.keras, name) for name in lilliput.keras.__all__)


def test_an_algorithm_for_torch_only_is_found_but_not_listed():
    assert lilliput.keras.LeastSquaresPruner is lilliput.LeastSquaresPruner
    assert "LeastSquaresPruner" not in lilliput.keras.__all__


def test_tab_completion_lists_every_public_name():
    assert dir(lilliput.keras) == sorted(lilliput.keras.__all__)


def test_all_doors_lead_to_the_same_classes():
    shared = set(lilliput.__all__) & set(lilliput.keras.__all__)
    assert len(shared) > 10
    assert all(getattr(lilliput, name) is getattr(lilliput.keras, name) for name in shared)
