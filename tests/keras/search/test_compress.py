"""compress and repair on a Keras model: from the goal to a file, trained by the original where needed."""

import json

import numpy as np
import onnxruntime
import pytest
from digits_search import digits
from digits_twins import SIDES, channels_last, keras_accuracy, keras_trained

from lilliput.errors import ConfigError, StageError
from lilliput.keras import L1NormPruner, Search, compress, repair

KERAS = SIDES["keras"]
X = channels_last(digits()[0][:4].numpy())
HARSH = [{"op_types": ["Conv2D"], "sparsity": 0.75}]


def answers_of(path, x):
    session = onnxruntime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x})[0].argmax(1)


@pytest.mark.slow
def test_what_pruning_took_is_trained_back_with_the_original_as_teacher(tmp_path):
    model, baseline = keras_trained(), keras_accuracy(keras_trained())
    before = model.get_weights()
    # one sparsity, so that there is nothing to be had by another choice
    rules = [
        {**HARSH[0], "sparsity": {"choose": [0, 0.75]}},
        {"op_names": ["head"], "quant_bits": 8},
    ]
    done = compress(
        model,
        budget={"macs": 0.15, "drop": 0.0},
        data=lambda: ((x, None) for x in KERAS.batches(18)),
        evaluate=keras_accuracy,
        folder=tmp_path,
        config_list=rules,
        example_inputs=X,
        epochs=4,
        trials=1,
    )
    history = json.loads((tmp_path / "history.json").read_text())
    found, trained = (
        max(x["metric"] for x in history if x["what"].startswith(what))
        for what in ("found", "trained")
    )
    assert found < trained <= baseline + 0.02
    _, _, x, y = digits()
    correct = (answers_of(done.path, channels_last(x.numpy())) == y.numpy()).mean()
    assert correct == pytest.approx(done.receipt.after.metric) == pytest.approx(trained)
    assert done.receipt.after.macs <= 0.15 * done.receipt.before.macs
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.slow
def test_channels_are_restored_until_the_drop_is_kept(tmp_path):
    given = {"evaluate": keras_accuracy, "data": KERAS.batches(2), "example_inputs": X}
    found = repair(
        keras_trained(), HARSH, drop=0.1, folder=tmp_path, cost="macs", trials=4, **given
    )
    assert keras_accuracy(keras_trained()) - found.receipt.after.metric <= 0.1
    held = [rule["sparsity"] for rule in found.config_list for _ in rule["op_names"]]
    assert held and held != [0.75] * 4  # some of it stays, and not all


@pytest.mark.slow
def test_a_budget_of_latency_is_that_of_onnx_runtime(tmp_path):
    rules = [{"op_types": ["Conv2D", "Dense"], "sparsity": {"choose": [0, 0.5, 0.75]}}]
    search = Search(
        keras_trained(),
        rules,
        budget={"latency": 0.7},
        evaluate=keras_accuracy,
        data=KERAS.batches(2),
        example_inputs=KERAS.batches(1)[0],
        networks=3,
        trials=1,
    )
    found = search.run(tmp_path)
    (table,) = tmp_path.glob("latency-onnx-runtime-*.json")
    (held,) = json.loads(table.read_text())["models"].values()
    strongest = held["networks"][1]["layers"]
    assert set(strongest) == {"stem", "inner", "outer", "down", "head"}
    assert strongest["down"]["shape"] == [8, 3, 3, 4]  # outputs first, as for torch
    assert found.front[0]["costs"]["latency"] <= 0.7


def test_an_evaluation_cannot_reach_the_users_model(tmp_path):
    model, seen = keras_trained(), []
    before = model.get_weights()

    def careless(given):
        metric = keras_accuracy(given)
        seen.append(given is model)
        for variable in given.variables:
            variable.assign(variable * 0)
        return metric

    rules = [{"op_types": ["Conv2D"], "sparsity": {"choose": [0, 0.5]}}]
    given = {"evaluate": careless, "data": KERAS.batches(1), "example_inputs": X}
    task = Search(model, rules, budget={"macs": 0.5}, **given).start(tmp_path)
    assert task.baseline == keras_accuracy(keras_trained())
    choice = (1,) * len(task.space.decisions)
    metric = task.trial(choice).metric
    assert metric == keras_accuracy(task.candidate(choice).model)
    assert seen == [False, False]
    assert all(map(np.array_equal, before, model.get_weights()))


def test_a_model_under_a_compressor_is_refused(tmp_path):
    model = keras_trained()
    L1NormPruner(model, [{"op_names": ["inner"], "sparsity": 0.5}]).compress()
    rules = [{"op_types": ["Conv2D"], "sparsity": {"choose": [0, 0.5]}}]
    given = {"evaluate": keras_accuracy, "data": KERAS.batches(1), "example_inputs": X}
    with pytest.raises(StageError, match="under L1NormPruner"):
        Search(model, rules, budget={"macs": 0.5}, **given).run(tmp_path)


def test_batches_that_can_be_gone_through_once_are_refused(tmp_path):
    given = {"budget": {"macs": 0.5}, "evaluate": keras_accuracy, "folder": tmp_path}
    with pytest.raises(ConfigError, match="data: received an iterator"):
        compress(keras_trained(), data=iter(KERAS.batches(1)), **given)
