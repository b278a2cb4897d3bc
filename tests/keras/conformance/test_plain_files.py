"""Files of compressed models load in a process that has never heard of Lilliput."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from lilliput.frameworks.keras.lab import compiled, outputs, train
from lilliput.keras import LevelPruner, QATQuantizer
from lilliput.testing.keras import TinyAttention, TinyCNN, TinyLSTM

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ELSEWHERE = """
import sys
sys.modules["lilliput"] = None
import keras, numpy
for path in sys.argv[1:]:
    model = keras.models.load_model(path + ".keras")
    expected = numpy.load(path + ".npz")
    found = keras.ops.convert_to_numpy(model(expected["inputs"]))
    print(type(model).__name__, len(model.weights), float(abs(found - expected["outputs"]).max()) < 1e-5)
    model.fit(expected["inputs"], expected["outputs"], verbose=0)
"""


@pytest.mark.slow
def test_files_of_compressed_models_load_elsewhere(tmp_path):
    paths, expected = [], []
    for kind in (TinyCNN, TinyLSTM, TinyAttention):
        model = kind()
        count = len(model.weights)
        optimizer = compiled(model)
        LevelPruner(model, [{"sparsity": 0.5}], optimizer).compress()
        train(model, optimizer, 1)
        path = str(tmp_path / kind.name)
        model.save(f"{path}.keras")
        np.savez(f"{path}.npz", inputs=kind.make_input(), outputs=outputs(model))
        paths.append(path)
        expected.append(f"{type(model).__name__} {count} True")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_a_checkpoint_taken_while_quantizing_holds_the_float_weights(tmp_path):
    model = TinyCNN()
    weights = list(model.weights)
    optimizer = compiled(model)
    QATQuantizer(model, [{"quant_bits": 4}], optimizer).compress()
    train(model, optimizer, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for weight, saved in zip(weights, loaded.weights, strict=True):
        assert np.array_equal(
            keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(saved)
        ), weight.path
