"""Programs for NNI on TensorFlow: each ran unchanged, and its numbers are right."""

import runpy
from pathlib import Path

import keras
import numpy as np
import pytest

from lilliput.compat.nni.reading.check import check_file
from lilliput.errors import AlgorithmError, UnsupportedModelError

PROGRAMS = Path(__file__).parents[2] / "compat" / "programs"

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="these programs are for TensorFlow"
)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that runs a program in an empty folder, and gives back its globals.

    The check reads the same program, and has to say that all of it runs.
    """
    monkeypatch.chdir(tmp_path)

    def run(name):
        report = check_file(PROGRAMS / f"{name}.py")
        assert report.runs and report.verdicts, report
        return runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")

    return run


def test_v11_tf_agp(program):
    curve = [0.8 * (1 - (1 - epoch / 4) ** 3) for epoch in range(5)]
    assert program("v11_tf_agp")["zeros"] == [round(200 * sparsity) for sparsity in curve]


def test_v20_tf_level(program):
    ran = program("v20_tf_level")
    before = ran["before"]
    threshold = np.sort(np.abs(before), axis=None)[round(0.75 * before.size)]
    expected = np.where(np.abs(before) >= threshold, before, 0)
    np.testing.assert_array_equal(np.asarray(ran["model"].hidden.kernel), expected)
    assert ran["names"] == ["hidden"]
    np.testing.assert_array_equal(ran["again"].hidden.kernel.numpy(), expected)
    assert (ran["again"].fc.kernel.numpy() != 0).all()
    np.testing.assert_allclose(ran["again"](ran["x"]).numpy(), ran["output"], rtol=1e-6)


def test_v20_tf_custom(program):
    ran = program("v20_tf_custom")
    assert ran["seen"] == [("fc", "kernel"), ("fc", "bias")]
    for before, after in zip(ran["before"], ran["after"], strict=True):
        np.testing.assert_array_equal(after, np.where(np.abs(before) >= 0.2, before, 0))
        assert (after == 0).sum() > 0
    assert ran["masks"].keys() == {"kernel", "bias"}
    assert ran["is_dense"]
    assert ran["compressed"] is ran["model"] is ran["pruner"].compressed_model


def test_v210_tf_slim(program):
    ran = program("v210_tf_slim")
    threshold = np.sort(np.abs(ran["before"]))[5]
    kept = np.abs(ran["before"]) >= threshold
    np.testing.assert_array_equal(ran["after"], np.where(kept, ran["before"], 0))
    for key in ("gamma", "beta"):
        masks = np.concatenate([np.asarray(mask[key]) for mask in ran["masks"]])
        np.testing.assert_array_equal(masks, kept)
    assert all((kernel != 0).all() for kernel in ran["filters"])  # as in NNI, norms alone


def test_a_model_that_is_never_built_is_refused_at_compress(nni):
    model = keras.Sequential([keras.layers.Dense(3)])
    pruner = nni.compression.tensorflow.LevelPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(UnsupportedModelError, match="is not built"):
        pruner.compress()


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            {"weights": 1},
            r"a mask for 'weights' in layer 'fc'; expected names among 'kernel', 'bias'",
        ),
        ([1], "returned a list for layer 'fc'; expected a dict"),
    ],
)
def test_masks_of_other_names_are_refused(nni, one_layer, masks, message):
    class Wrong(nni.compression.tensorflow.Pruner):
        def calc_masks(self, wrapper, **kwargs):
            return masks

    with pytest.raises(AlgorithmError, match=message):
        Wrong(one_layer, [{"op_types": ["Dense"]}]).compress()


def test_masks_go_by_paths_and_by_the_names_of_tensorflow_as_well(nni, one_layer, kernel):
    mask = np.ones((6, 4), "float32")
    mask[0] = 0

    class ByPath(nni.compression.tensorflow.Pruner):
        def calc_masks(self, wrapper, **kwargs):
            return {f"{wrapper.layer.weights[0].path}:0": mask}

    ByPath(one_layer, [{"op_types": ["Dense"]}]).compress()
    np.testing.assert_array_equal(kernel(one_layer) == 0, mask == 0)
