"""repair: the least cost at which a drop is kept."""

from itertools import product

import numpy as np
import pytest
from digits_search import accuracy, batches, digits, trained

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.export.targets.executed import ExecutedFile
from lilliput.search.solve import Term, cheapest, total
from lilliput.torch import repair

GIVEN = {"evaluate": accuracy, "data": batches(2), "example_inputs": digits()[0][:4]}
HARSH = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight"], "quant_bits": 2}]


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_choice_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    sizes = (2, 3, 3)
    scores = [rng.random(n) for n in sizes]
    terms = [Term((0, 1), rng.random((2, 3))), Term((1, 2), rng.random((3, 3)))]
    every = list(product(*map(range, sizes)))
    lost = {c: sum(s[i] for s, i in zip(scores, c, strict=True)) for c in every}
    bound = float(np.quantile(list(lost.values()), 0.4))
    found = cheapest(scores, {"bytes": terms}, "bytes", bound)
    assert found == min((c for c in every if lost[c] <= bound), key=lambda c: total(terms, c))


def test_channels_are_restored_until_the_drop_is_kept_and_no_further(tmp_path):
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.75}]
    found = repair(trained(), rules, drop=0.02, folder=tmp_path, cost="macs", trials=4, **GIVEN)
    assert accuracy(trained()) - found.receipt.after.metric <= 0.02
    held = [rule["sparsity"] for rule in found.config_list for _ in rule["op_names"]]
    assert held and held != [0.75] * 4  # some of it stays, and not all
    assert found.receipt.after.macs < found.receipt.before.macs
    kept = [x for x in found.front if x["metric"] >= accuracy(trained()) - 0.02]
    assert min(x["costs"]["macs"] for x in kept) == pytest.approx(found.receipt.after.macs)


def test_the_receipt_says_which_processors_the_file_is_for(tmp_path):
    rules = [{"op_types": ["Linear"], "quant_bits": 8}]
    found = repair(trained(), rules, drop=1.0, folder=tmp_path, cost="macs", trials=2, **GIVEN)
    assert any("model.onnx is for CPUs" in note for note in found.receipt.notes)


def test_what_loses_nothing_stays_as_it_is(tmp_path):
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 8}]
    found = repair(trained(), rules, drop=0.05, folder=tmp_path, cost="macs", **GIVEN)
    assert found.quantization == [
        {"op_names": ["head"], "quant_types": ["weight"], "quant_bits": 8}
    ]


def test_a_drop_that_cannot_be_kept_is_refused(tmp_path):
    metrics = iter([1.0, 0.2, 0.3])  # of the original, of what is given, and of the mildest
    given = {**GIVEN, "evaluate": lambda model: next(metrics)}
    with pytest.raises(AlgorithmError, match=r"even the least aggressive choices lose 0\.7"):
        repair(trained(), HARSH, drop=0.1, folder=tmp_path, cost="macs", **given)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"cost": "euros"}, "cost: received 'euros'"),
        ({"drop": -1}, "drop: received -1"),
        ({"trials": 1}, "trials: received 1, expected 2 or more"),
        ({"config_list": []}, "config_list: expected a list of rules"),
        ({"config_list": ["conv"]}, "rule 0: received 'conv', expected a dict"),
        ({"config_list": [{"op_types": ["Linear"], "quant_bits": "few"}]}, "quant_bits"),
        ({"config_list": [{"op_types": ["Linear"], "sparsity": True}]}, "sparsity"),
        # stem and outer make the channels of one sum
        (
            {
                "config_list": [
                    {"op_names": ["stem"], "sparsity": 0.4},
                    {"op_names": ["outer"], "sparsity": 0.8},
                ]
            },
            "the channels of 'stem', 'outer' are removed together, but their rules have different",
        ),
        (
            {
                "config_list": [
                    {"op_names": ["stem"], "sparsity": 0.7},
                    {"op_names": ["outer"], "sparsity": 0.5},
                ]
            },
            "have no sparsity above 0 in common",
        ),
    ],
)
def test_bad_arguments_are_refused(others, message, tmp_path):
    given = {"config_list": HARSH, "drop": 0.1, "cost": "bytes", **GIVEN, **others}
    with pytest.raises(ConfigError, match=message):
        repair(trained(), folder=tmp_path, **given)


def test_the_executed_file_is_held_to_the_drop(tmp_path):
    def worse(model):  # in its runtime
        return accuracy(model) - 0.3 * isinstance(model, ExecutedFile)

    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 8}]
    given = {**GIVEN, "evaluate": worse}
    found = repair(trained(), rules, drop=0.05, folder=tmp_path, cost="params", **given)
    assert not found.is_met
    assert found.receipt.notes[0].startswith("the executed file loses 0.3")
    assert "inf" not in found.explain() and "e+1" not in found.explain()
    assert "params: " in found.explain()
