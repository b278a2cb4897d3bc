"""v3's config keys for pruning: granularity, thresholds, groups and alignment, against NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


def masks_of(name, model, rules, **options):
    import nni.compression.pruning as pruning

    pruner = getattr(pruning, name)(model, rules, **options)
    _, masks = pruner.compress()
    return {key: {k: v.numpy() for k, v in value.items()} for key, value in masks.items()}


def model_of(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in layers))


def lowest(scores, count):
    """Return ones with zeros at the smallest scores."""
    keep = np.ones(scores.size)
    keep[np.argsort(scores, axis=None, kind="stable")[:count]] = 0
    return keep.reshape(scores.shape)


def weight_of(model, name="0"):
    return model.get_submodule(name).weight.detach().numpy().copy()


@pytest.mark.parametrize("name", ["L1NormPruner", "L2NormPruner", "LevelPruner"])
def test_in_channel_prunes_the_second_dimension(name):
    model = model_of(lambda: nn.Conv2d(8, 6, 3))
    weight, power = weight_of(model), 2 if name == "L2NormPruner" else 1
    scores = (np.abs(weight) ** power).sum((0, 2, 3))
    rules = [{"op_types": ["Conv2d"], "sparse_ratio": 0.5, "granularity": "in_channel"}]
    found = masks_of(name, model, rules)["0"]
    expected = np.broadcast_to(lowest(scores, 4)[None, :, None, None], weight.shape)
    assert np.array_equal(found["weight"], expected)
    assert found["bias"].all()  # no output channel is gone as a whole
    assert not model[0].weight.detach().numpy()[expected == 0].any()


@pytest.mark.parametrize("granularity", ["out_channel", [1, -1, -1, -1]])
@pytest.mark.parametrize("name", ["L1NormPruner", "LevelPruner"])
def test_out_channel_prunes_filters_and_their_biases(name, granularity):
    model = model_of(lambda: nn.Conv2d(4, 8, 3))
    weight = weight_of(model)
    rules = [{"op_types": ["Conv2d"], "sparse_ratio": 0.5, "granularity": granularity}]
    found = masks_of(name, model, rules)["0"]
    keep = lowest(np.abs(weight).sum((1, 2, 3)), 4)
    assert np.array_equal(found["weight"], np.broadcast_to(keep[:, None, None, None], weight.shape))
    assert np.array_equal(found["bias"], keep)


@pytest.mark.parametrize(("name", "power"), [("L1NormPruner", 1), ("L2NormPruner", 2)])
@pytest.mark.parametrize("block", [[2, 4], [4], [-1, 2]])
def test_blocks_lie_along_the_last_dimensions(name, power, block):
    model = model_of(lambda: nn.Linear(12, 8))
    weight = weight_of(model)
    rows, columns = [1, *block][-2:]
    rows = 8 if rows == -1 else rows
    tiles = weight.reshape(8 // rows, rows, 12 // columns, columns)
    scores = (np.abs(tiles) ** power).sum((1, 3)) ** (1 / power)
    keep = lowest(scores, round(0.25 * scores.size))
    rules = [{"op_types": ["Linear"], "sparse_ratio": 0.25, "granularity": block}]
    found = masks_of(name, model, rules)["0"]
    assert np.array_equal(found["weight"], keep.repeat(rows, 0).repeat(columns, 1))


def test_a_threshold_prunes_what_scores_below_it_within_bounds():
    model = model_of(
        lambda: nn.Linear(10, 10), lambda: nn.Linear(10, 10), lambda: nn.Linear(10, 10)
    )
    weights = [np.abs(weight_of(model, str(i))) for i in range(3)]
    rules = [
        {"op_names": ["0"], "sparse_threshold": 0.1},
        {"op_names": ["1"], "sparse_threshold": 1e-6, "min_sparse_ratio": 0.2},
        {"op_names": ["2"], "sparse_threshold": 9.0, "max_sparse_ratio": 0.7},
    ]
    found = masks_of("LevelPruner", model, rules)
    assert np.array_equal(found["0"]["weight"], weights[0] >= 0.1)
    assert np.array_equal(found["1"]["weight"], lowest(weights[1], 20))
    assert np.array_equal(found["2"]["weight"], lowest(weights[2], 70))


def test_a_global_group_shares_a_ratio_over_several_rules_by_scores_as_they_are():
    model = model_of(lambda: nn.Linear(8, 6), lambda: nn.Linear(6, 4), lambda: nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight *= 0.5
    weights = [weight_of(model, str(i)) for i in range(3)]
    rules = [
        {"op_names": ["0"], "sparse_ratio": 0.5, "global_group_id": "all"},
        {"op_names": ["1"], "sparse_ratio": 0.5, "global_group_id": "all"},
        {"op_names": ["2"], "sparse_ratio": 0.25},
    ]
    found = masks_of("LevelPruner", model, rules)
    joined = np.abs(np.concatenate([w.ravel() for w in weights[:2]]))
    keep = lowest(joined, 36)
    assert np.array_equal(found["0"]["weight"].ravel(), keep[:48])
    assert np.array_equal(found["1"]["weight"].ravel(), keep[48:])
    assert np.array_equal(found["2"]["weight"], lowest(np.abs(weights[2]), 4))


def test_a_global_group_of_filters_counts_weights_and_keeps_to_each_layers_bounds():
    model = model_of(lambda: nn.Linear(8, 6), lambda: nn.Linear(6, 8))
    with torch.no_grad():
        model[1].weight *= 0.01
    shared = {"sparse_ratio": 0.5, "global_group_id": 1}
    rules = [{"op_names": ["0"], **shared}, {"op_names": ["1"], **shared, "max_sparse_ratio": 0.5}]
    first, second = (np.abs(weight_of(model, str(i))).sum(1) for i in range(2))
    found = masks_of("L1NormPruner", model, rules)
    # Half of 96 weights: four rows of 6 from the small layer, which is all it may give, then rows of 8.
    assert np.array_equal(found["1"]["weight"][:, 0], lowest(second, 4))
    assert np.array_equal(found["0"]["weight"][:, 0], lowest(first, 3))


def test_a_dependency_group_prunes_the_same_channels_by_their_mean_score():
    model = model_of(lambda: nn.Conv2d(3, 8, 3), lambda: nn.Conv2d(8, 8, 3, groups=2))
    scores = [np.abs(weight_of(model, str(i))).sum((1, 2, 3)) for i in range(2)]
    shared = {"sparse_ratio": 0.5, "dependency_group_id": "a"}
    rules = [
        {"op_names": ["0"], **shared},
        {"op_names": ["1"], **shared, "internal_metric_block": 2},
    ]
    found = masks_of("L1NormPruner", model, rules)
    mean = (scores[0] + scores[1]).reshape(2, 4)  # two groups lose as many each
    keep = np.concatenate([lowest(part, 2) for part in mean])
    for name in ("0", "1"):
        assert np.array_equal(found[name]["weight"][:, 0, 0, 0], keep)


@pytest.mark.parametrize("target", ["_output_", "weight"])
def test_a_norm_may_be_aligned_with_its_convolution(target):
    model = model_of(lambda: nn.Conv2d(3, 8, 3), lambda: nn.BatchNorm2d(8))
    nn.init.normal_(model[1].bias)
    scores = np.abs(weight_of(model)).sum((1, 2, 3))
    align = {"module_name": "0", "target_name": "weight", "dims": [0]}
    settings = {"align": align, "granularity": "per_channel" if target == "_output_" else None}
    rules = [
        {"op_types": ["Conv2d"], "sparse_ratio": 0.5},
        {"op_names": ["1"], "target_names": [target], "target_settings": {target: settings}},
    ]
    found = masks_of("L1NormPruner", model, rules)
    keep = lowest(scores, 4)
    assert np.array_equal(found["1"]["weight"], keep)
    assert ("bias" in found["1"]) == (target == "_output_")
    output = model(torch.randn(2, 3, 5, 5)).detach().numpy()
    assert (not output[:, keep == 0].any()) == (target == "_output_")


def test_a_rule_for_the_weight_alone_leaves_the_bias():
    model = model_of(lambda: nn.Linear(4, 8))
    rules = [{"op_types": ["Linear"], "sparse_ratio": 0.5, "target_names": ["weight"]}]
    assert set(masks_of("L1NormPruner", model, rules)["0"]) == {"weight"}
    assert (model[0].bias != 0).all()


def test_a_schedule_moves_the_ratio_of_groups():
    from nni.compression import TorchEvaluator
    from nni.compression.pruning import AGPPruner, L1NormPruner

    model = model_of(lambda: nn.Linear(8, 8), lambda: nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train(model, optimizer, step, schedulers, max_steps, max_epochs):
        for _ in range(max_steps):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            zeros.append([int((layer.weight == 0).all(1).sum()) for layer in model])

    zeros = []
    rules = [{"op_types": ["Linear"], "sparse_ratio": 0.5, "dependency_group_id": "a"}]
    pruner = L1NormPruner(model, rules, TorchEvaluator(train, optimizer))
    _, masks = AGPPruner(pruner, interval_steps=1, total_times=2).compress()
    assert zeros == [[round(8 * 0.5 * (1 - 0.5**3))] * 2, [4, 4]]
    assert torch.equal(masks["0"]["weight"][:, 0], masks["1"]["weight"][:, 0])


RATIO = {"sparse_ratio": 0.5}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{**RATIO, "granularity": "per_channel"}], "rule 0 → granularity.*'out_channel'"),
        ([{**RATIO, "granularity": [5, 5]}], r"blocks of \[5, 5\].*do not divide"),
        ([{**RATIO, "sparse_threshold": 0.1}], "received both"),
        ([{**RATIO, "target_names": ["_input_"]}], "pruning acts on"),
        ([{**RATIO, "target_names": ["_output_"]}], "activations are not masked here"),
        ([{**RATIO, "align": {"target_name": "weight"}}], "'module_name' is missing"),
        (
            [
                {"op_names": ["0"], **RATIO, "global_group_id": 1},
                {"op_names": ["1"], "sparse_ratio": 0.2, "global_group_id": 1},
            ],
            "rule 1 → global_group_id.*0.5 and 0.2",
        ),
        (
            [{**RATIO, "global_group_id": 1, "dependency_group_id": 1}],
            "not in both",
        ),
        ([{**RATIO, "dependency_group_id": 1}], "different numbers of positions"),
        ([{**RATIO, "internal_metric_block": 0}], "a number of equal parts"),
        ([{**RATIO, "granularity": "out_channel", "q": 1}], "rule 0 → q: unknown key"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(rules, words):
    model = model_of(lambda: nn.Linear(8, 6), lambda: nn.Linear(6, 4))
    rules = [{"op_types": ["Linear"], **rule} for rule in rules]
    with pytest.raises(ConfigError, match=words):
        masks_of("L1NormPruner", model, rules)


def test_a_criterion_of_filters_refuses_blocks():
    model = model_of(lambda: nn.Linear(8, 8))
    rules = [{"op_types": ["Linear"], "sparse_ratio": 0.5, "granularity": [4, 4]}]
    with pytest.raises(ConfigError, match="it scores output channels"):
        masks_of("FPGMPruner", model, rules)


def test_filters_of_a_criterion_can_be_in_groups():
    model = model_of(lambda: nn.Linear(6, 8), lambda: nn.Linear(8, 8))
    rows = [weight_of(model, str(i)).astype(np.float64) for i in range(2)]
    scores = [np.linalg.norm(w[:, None] - w[None], axis=2).sum(1) for w in rows]
    rules = [{"op_types": ["Linear"], "sparse_ratio": 0.5, "dependency_group_id": "a"}]
    found = masks_of("FPGMPruner", model, rules)
    keep = lowest(scores[0] + scores[1], 4)
    assert all(np.array_equal(found[name]["weight"][:, 0], keep) for name in ("0", "1"))
