"""One search, two frameworks: the same network in torch and in Keras has the same choices, scores and end."""

from itertools import product

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from digits_search import digits
from digits_twins import SIDES, channels_last, keras_net, keras_trained, same_answers

import lilliput.keras
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.frameworks.keras.sidecar import sidecar_of
from lilliput.search.costs import Counts
from lilliput.search.scores import find_scores
from lilliput.search.solve import total
from lilliput.search.space import Space
from lilliput.search.timing import architecture_of

CHANNELS = {"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}
BITS = {"quant_bits": {"choose": [{"weight": b, "input": 8, "output": 8} for b in (4, 8)]}}
BOTH = [{**CHANNELS, **BITS}]


def space_of(side, rules=BOTH):
    return Space(side.trained(), rules, side.inputs(digits()[0][:2]))


def search_of(side, budget, rules, **others):
    given = {"data": side.batches(), "example_inputs": side.inputs(digits()[0][:4])}
    given |= {"evaluate": side.accuracy, "trials": 2, **others}
    return side.package.Search(side.trained(), rules, budget=budget, **given)


KERAS_FIRST = ["keras", pytest.param("torch", marks=pytest.mark.slow)]  # tests/search has torch


def test_the_twins_compute_the_same():
    np.testing.assert_allclose(*same_answers(), atol=1e-4)


def test_decisions_and_counts_are_the_same():
    one, other = (space_of(side) for side in SIDES.values())
    assert list(map(str, one.decisions)) == list(map(str, other.decisions))
    rng = np.random.default_rng(0)
    for choice in ([int(rng.integers(n)) for n in one.sizes] for _ in range(6)):
        found = [_counted(Counts(space), choice) for space in (one, other)]
        assert found[0] == found[1]
        assert one.config_list(choice) == other.config_list(choice)


def _counted(counts, choice):
    costs = (counts.parameters(), counts.macs(), counts.bytes())
    return [*(total(x, choice) for x in costs), counts.average_bits(choice)]


def test_scores_are_the_same():
    one, other = (find_scores(space_of(side), side.batches()) for side in SIDES.values())
    assert all(x[-1] > 0 for x in one)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-6 * max(x[-1] for x in one))


def test_the_exact_best_by_scores_is_the_same(tmp_path):
    found = []
    for name, side in SIDES.items():
        (tmp_path / name).mkdir()
        task = search_of(side, {"macs": 0.5, "average_bits": 6.5}, BOTH).start(tmp_path / name)
        fitting = [c for c in product(*map(range, task.space.sizes)) if task.may_fit(c)]
        found.append(task.solve())
        assert task.score(found[-1]) == pytest.approx(min(map(task.score, fitting)))
    assert found[0] == found[1]


@pytest.mark.parametrize("framework", KERAS_FIRST)
def test_budgets_are_kept_in_the_written_file(framework, tmp_path):
    budget = {"macs": 0.5, "params": 0.6}
    found = search_of(SIDES[framework], budget, [CHANNELS], trials=1).run(tmp_path)
    held = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(found.path).graph.initializer}
    nodes = [n for n in onnx.load(found.path).graph.node if n.op_type == "Conv"]
    kernels = [held[node.input[1]] for node in nodes]
    sides = (64, 64, 64, 16)  # places of each convolution's output
    macs = sum(w.size * side for w, side in zip(kernels, sides, strict=True)) + 10 * len(kernels[3])
    whole = 16 * 64 * (9 + 144 + 144) + 32 * 144 * 16 + 320
    assert 0.3 * whole < macs <= 0.5 * whole
    assert found.receipt.after.parameters <= 0.6 * found.receipt.before.parameters
    assert found.is_met
    session = onnxruntime.InferenceSession(found.path)
    _, _, x, y = digits()
    feeds = {session.get_inputs()[0].name: np.asarray(SIDES[framework].inputs(x))}
    correct = session.run(None, feeds)[0].argmax(1) == y.numpy()
    assert float(correct.mean()) == pytest.approx(found.receipt.after.metric)


@pytest.mark.parametrize("framework", KERAS_FIRST)
def test_bits_and_bytes_are_those_of_the_written_file(framework, tmp_path):
    budget = {"average_bits": 6, "bytes": 0.5, "drop": 0.1}
    found = search_of(SIDES[framework], budget, BOTH, trials=1).run(tmp_path)
    assert found.is_met and found.path.stat().st_size == found.receipt.after.bytes
    assert found.receipt.after.bytes <= 0.5 * (tmp_path / "original.onnx").stat().st_size
    bits = {rule["quant_bits"]["weight"] for rule in found.quantization}
    assert bits == {4, 8}
    front = found.front[0]["costs"]
    assert front["average_bits"] <= 6 and front["bytes"] == found.receipt.after.bytes
    assert found.receipt.before.metric - found.receipt.after.metric <= 0.1


def test_nothing_is_left_in_a_keras_model():
    model = keras_trained()
    before, kinds = model.get_weights(), [type(layer) for layer in model.layers]
    x = channels_last(digits()[0].numpy())
    find_scores(Space(model, BOTH, x[:2]), [x[:64]])
    assert all(map(np.array_equal, before, model.get_weights()))
    assert [type(layer) for layer in model.layers] == kinds
    assert all(sidecar_of(layer) is None for layer in model._flatten_layers())


def test_a_score_is_the_squared_change_of_the_loss_with_an_activation_inside():
    """One layer whose softmax is its own: the Fisher information of its probabilities is known."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).standard_normal((4096, 6)).astype("float32")
    layer = keras.layers.Dense(4, activation="softmax", name="head")
    model = keras.Sequential([keras.Input((6,)), layer])
    rules = [{"op_types": ["Dense"], "quant_types": ["weight"], "quant_bits": {"choose": [3, 8]}}]
    scores = find_scores(Space(model, rules, x[:2]), [x])
    quantizer = lilliput.keras.PTQQuantizer(
        model, [{"quant_types": ["weight"], "quant_bits": 3}], weights="mse"
    )
    plain = np.asarray(layer.kernel)
    quantizer.compress()
    change = x @ (np.asarray(layer.kernel) - plain)
    quantizer.strip()
    p = np.asarray(model(x))
    fisher = ((p * change**2).sum(1) - (p * change).sum(1) ** 2).mean()
    assert np.isclose(scores[0][1], fisher, rtol=0.1)


def test_a_search_is_continued_by_a_model_that_was_made_again(tmp_path):
    calls = []

    def counted(model):
        calls.append(model)
        return SIDES["keras"].accuracy(model)

    first = search_of(SIDES["keras"], {"macs": 0.6}, [CHANNELS], evaluate=counted).start(tmp_path)
    choices = [(0, 1, 1), (1, 0, 1)]
    tried, count = first.trials(choices), len(calls)
    assert count == 3  # with the original
    again = search_of(SIDES["keras"], {"macs": 0.6}, [CHANNELS], evaluate=counted).start(tmp_path)
    assert again.trials(choices) == tried and len(calls) == count


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"target": "executorch"},
            "ExecuTorch files are written from PyTorch models; use .*litert",
        ),
        ({"data": []}, "data: received no batch"),
    ],
)
def test_bad_arguments_are_refused(others, message):
    with pytest.raises(ConfigError, match=message):
        search_of(SIDES["keras"], {"macs": 0.5}, [CHANNELS], **others)


def test_latency_in_a_runtime_that_does_not_tell_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="LiteRT does not report the time of its layers"):
        search_of(SIDES["keras"], {"latency": 0.5}, [CHANNELS], target="litert").run(tmp_path)


def test_a_drop_that_cannot_be_kept_says_what_is_lost(tmp_path):
    with pytest.raises(AlgorithmError, match=r"drop 0\.01: .* loses 0\.\d+ .*train the network"):
        search_of(SIDES["keras"], {"macs": 0.2, "drop": 0.01}, [CHANNELS], trials=1).run(tmp_path)


def test_one_model_is_one_architecture_however_often_it_is_written(tmp_path):
    x = channels_last(digits()[0][:4].numpy())
    models = [keras_trained(), keras_trained(), keras_net(8)]
    files = [
        lilliput.keras.export_onnx(model, tmp_path / f"{i}.onnx", x, check=False).path
        for i, model in enumerate(
            [*models, models[0]]
        )  # the last one has larger numbers in its names
    ]
    assert files[0].stat().st_size == files[3].stat().st_size
    one, again, smaller, _ = map(architecture_of, files)
    assert one == again != smaller


def test_a_budget_that_cannot_be_met_names_the_nearest(tmp_path):
    with pytest.raises(AlgorithmError, match="cannot be met with these choices. The closest: 0.01"):
        search_of(SIDES["keras"], {"macs": 0.01}, [CHANNELS]).run(tmp_path)
    assert not list(tmp_path.glob("model*"))
