"""Sensitivities and trials on each backend: those of torch, for the same weights and batches."""

import keras
import numpy as np
import pytest
from keras import layers, ops

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

import lilliput.keras as on_keras  # noqa: E402
from lilliput.search.scores import find_scores  # noqa: E402
from lilliput.search.space import Space  # noqa: E402

from .test_same_as_torch import BATCH, twins  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RULES = [
    {
        "op_types": ["Conv2d", "Linear"],
        "sparsity": {"choose": [0, 0.25, 0.5]},
        "quant_bits": {"choose": [3, 8]},
    }
]
FIRST = torch.from_numpy(BATCH.transpose(0, 3, 1, 2).copy())


def test_scores_are_those_of_torch():
    one, other = twins()
    expected = find_scores(Space(one, RULES, FIRST[:2]), [FIRST[:8], FIRST[8:]])
    found = find_scores(Space(other, RULES, BATCH[:2]), [BATCH[:8], (BATCH[8:], None)])
    for x, y in zip(expected, found, strict=True):
        assert x[-1] > 0
        np.testing.assert_allclose(y, x, rtol=5e-3, atol=1e-6)


def test_a_regression_has_scores_too():
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(1, name="out")]
    )
    rules = [{"op_types": ["Dense"], "quant_bits": {"choose": [2, 4, 8]}}]
    x = np.random.default_rng(0).standard_normal((64, 6)).astype("float32")
    for eight, four, two in find_scores(Space(model, rules, x[:2]), [x]):
        assert 0 < eight < four < two


def test_what_runs_inside_a_loop_is_spared_rather_than_guessed():
    """A layer whose gradients cannot be seen gets a score far above all others."""
    inputs = keras.Input((5, 4))
    x = layers.LSTM(6, name="lstm")(inputs)
    model = keras.Model(inputs, layers.Dense(3, name="head")(x))
    rules = [{"op_types": ["default"], "quant_types": ["weight"], "quant_bits": {"choose": [4, 8]}}]
    batch = np.random.default_rng(0).standard_normal((16, 5, 4)).astype("float32")
    space = Space(model, rules, batch[:2])
    scores = {
        d.layers[0]: x for d, x in zip(space.decisions, find_scores(space, [batch]), strict=True)
    }
    assert scores["lstm.kernel"][1] == scores["lstm.recurrent_kernel"][1] == 1e3 * scores["head"][1]


def test_a_trial_is_a_smaller_network_that_is_evaluated(tmp_path):
    _, model = twins()
    before, seen = model.get_weights(), []

    def evaluate(candidate):
        seen.append(sum(int(np.prod(x.shape)) for x in candidate.trainable_variables))
        answers = ops.convert_to_numpy(ops.stop_gradient(candidate(BATCH, training=False)))
        return -float(np.square(answers).mean())

    search = on_keras.Search(
        model,
        [{"op_types": ["Conv2d"], "sparsity": {"choose": [0, 0.5]}}],
        budget={"params": 0.6},
        evaluate=evaluate,
        data=[BATCH],
        example_inputs=BATCH[:2],
    )
    task = search.start(tmp_path)
    trial = task.trial(task.solve())
    assert trial.costs["params"] <= 0.6 * task.whole["params"]
    assert seen == [trial.costs["params"], task.whole["params"]]
    assert all(map(np.array_equal, before, model.get_weights()))
