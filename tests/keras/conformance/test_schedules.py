"""What changes in the middle of a compiled ``fit`` takes effect at the same step as without graphs."""

import keras
import numpy as np
import pytest

from lilliput.frameworks.keras import lab as keras_lab
from lilliput.frameworks.keras.lab import compiled, outputs, set_seed
from lilliput.frameworks.keras.lab_models import make_batch
from lilliput.keras import AGPPruner, QATQuantizer
from lilliput.testing.keras import TinyCNN, TinyMLP
from lilliput.testing.observe import entries

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EXAMPLE = TinyCNN.make_input(1)


def fit(make, epochs=3, **options):
    """Return a model, its compressor and the history of a ``fit`` with two steps an epoch."""
    set_seed(0)
    model = TinyCNN()
    compressor = make(model, compiled(model, **options))
    compressor.compress()
    batch = make_batch(model)
    history = model.fit(
        *batch,
        batch_size=2,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=batch,
        callbacks=[compressor.callback()],
    )
    return model, compressor, history.history


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda m, o: QATQuantizer(m, [{"quant_bits": 4}], o), marks=pytest.mark.slow),
        pytest.param(
            lambda m, o: QATQuantizer(m, [{"quant_bits": 4}], o, quant_start_step=3),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda m, o: QATQuantizer(m, [{"quant_bits": 4}], o, EXAMPLE, freeze_norm_step=3),
            marks=pytest.mark.slow,
        ),
        lambda m, o: AGPPruner(m, [{"final_sparsity": 0.8, "end_epoch": 2}], o),
    ],
    ids=["ranges become known", "quantization begins", "norms freeze", "sparsity grows"],
)
def test_a_compiled_fit_is_one_without_graphs(make):
    plain, first, history = fit(make, run_eagerly=True)
    model, second, compiled_history = fit(make, run_eagerly=False)
    for one, two in zip(entries(keras_lab, first), entries(keras_lab, second), strict=True):
        np.testing.assert_allclose(two.raw, one.raw, atol=1e-5, err_msg=one.label)
    for key, losses in history.items():
        np.testing.assert_allclose(compiled_history[key], losses, rtol=1e-4, err_msg=key)
    np.testing.assert_allclose(outputs(model), outputs(plain), atol=1e-4)
    inputs, target = make_batch(model)
    loss = model.evaluate(inputs, target, verbose=0)
    np.testing.assert_allclose(loss, np.square(outputs(model) - target).mean(), rtol=1e-4)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="torch does one step at a time")
def test_steps_that_are_executed_together_are_all_counted():
    model = TinyMLP()
    optimizer = compiled(model, run_eagerly=False, steps_per_execution=2)
    quantizer = QATQuantizer(model, [{"quant_bits": 4}], optimizer)
    quantizer.compress()
    model.fit(*make_batch(model, 8), batch_size=2, epochs=2, verbose=0)
    assert quantizer.current_step == 8
