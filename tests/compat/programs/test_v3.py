"""Programs for NNI 3.0: each ran unchanged, and its numbers are right."""

import torch


def smallest(score, count):
    return score.argsort()[:count].sort().values


def rows(weight):
    return (weight == 0).flatten(1).all(1).nonzero().flatten()


def test_v30_l1norm(program):
    ran = program("v30_l1norm")
    gone = smallest(ran["before"].abs().sum((1, 2, 3)), 4)
    assert set(ran["masks"]) == {"conv1"}
    assert torch.equal(rows(ran["masks"]["conv1"]["weight"]), gone)
    kept = [i for i in range(8) if i not in gone.tolist()]
    assert torch.equal(ran["model"].conv1.weight, ran["before"][kept])
    assert ran["model"].conv2.in_channels == 4


def test_v30_taylor(program):
    ran = program("v30_taylor")
    assert ran["runs"] == [(2, None)]
    score = sum(ran["seen"]).sum((1, 2, 3))
    assert torch.equal(rows(ran["masks"]["conv2"]["weight"]), smallest(score, 4))


def test_v30_agp(program):
    ran = program("v30_agp")
    curve = [0.8 * (1 - (1 - times / 4) ** 3) for times in range(5)]
    assert ran["zeros"] == [round(1280 * sparsity) for sparsity in curve for _ in range(2)]
    assert int((ran["masks"]["fc"]["weight"] == 0).sum()) == 1024
    assert ran["runs"] == [(10, None)]


def test_v30_qat(program):
    ran = program("v30_qat")
    assert ran["runs"] == [(6, None)]
    entry = ran["calibration_config"]["fc"]
    assert {key: entry[f"{key}_bits"] for key in ("input", "weight", "output")} == dict.fromkeys(
        ("input", "weight", "output"), 8
    )
    scale = entry["weight_scale"].reshape(-1, *[1] * (ran["raw"].dim() - 1))
    integers = ran["seen"] / scale
    torch.testing.assert_close(integers, integers.round())
    assert (ran["seen"] - ran["raw"]).abs().max() <= scale.max() / 2 + 1e-6
    assert entry["tracked_min_input"] <= 0 < entry["tracked_max_input"]
