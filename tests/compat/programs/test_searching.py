"""Programs for NNI's pruners that search: each ran unchanged, keeps its budget, and lost little."""

import json
import logging
from pathlib import Path

import pytest
import torch
from trained_digits import Net, loaders, test_accuracy, trained

pytest.importorskip("scipy")

CONVOLUTIONS = ("conv1", "conv2", "conv3")


def accuracy(model):
    return test_accuracy(model, loaders()[1])


def uniform(sparsity, rows):
    """Prune every layer alike, by hand: single weights, or whole filters by their L1 norm."""
    model = trained()
    names = CONVOLUTIONS if rows else (*CONVOLUTIONS, "fc")
    with torch.no_grad():
        for layer in (getattr(model, name) for name in names):
            weight = layer.weight.flatten(1) if rows else layer.weight.flatten()
            score = weight.abs().sum(1) if rows else weight.abs()
            gone = score.argsort()[: round(sparsity * len(score))]
            weight[gone] = 0
    return model


def zeros(model, names):
    weights = [getattr(model, name).weight for name in names]
    return sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)


def test_v19_netadapt(program):
    ran = program("v19_netadapt")
    gone, count = zeros(ran["model"], CONVOLUTIONS)
    assert 0.5 <= gone / count < 0.52
    rows = [(getattr(ran["model"], x).weight == 0).flatten(1).all(1).sum() for x in CONVOLUTIONS]
    assert sum(int(n) * w for n, w in zip(rows, (9, 144, 216), strict=True)) == gone  # filters only
    assert ran["tuned"] and all(ran["tuned"])  # in training mode
    alike = uniform(0.5, rows=True)
    gone = {name: getattr(alike, name).weight == 0 for name in CONVOLUTIONS}
    ran["short_term_fine_tuner"](alike)
    with torch.no_grad():
        for name, rows in gone.items():
            getattr(alike, name).weight[rows] = 0
    assert ran["after"] >= accuracy(alike)
    assert ran["after"] >= ran["before"] - 0.03
    result = json.loads(Path("experiment/search_result.json").read_text())
    assert result["performance"] == ran["after"]
    assert {name for rule in result["config_list"] for name in rule["op_names"]} <= {*CONVOLUTIONS}
    plain = Net()
    plain.load_state_dict(torch.load("pruned.pth"))
    assert accuracy(plain) == ran["after"]


def test_v19_annealing(program):
    ran = program("v19_annealing")
    gone, count = zeros(ran["model"], (*CONVOLUTIONS, "fc"))
    assert gone == round(0.9 * count) or 0.9 <= gone / count < 0.92
    first, _, *others = ran["scores"]  # the second is the model as it was
    assert ran["found"] == max(first, *others) == others[-1]  # what was found is what is in force
    assert ran["found"] >= accuracy(uniform(0.9, rows=False))
    for name, mask in ran["masks"].items():
        weight = getattr(ran["model"], name).weight
        before = ran["state"][f"{name}.weight"]
        assert torch.equal(weight, before * mask["weight"])  # nothing was trained
    shares = {name: float(mask["weight"].mean()) for name, mask in ran["masks"].items()}
    assert len({round(x, 2) for x in shares.values()}) > 1


def test_v24_autocompress(program):
    ran = program("v24_autocompress")
    small, given = ran["model"], ran["given"]
    widths = [getattr(small, name).out_channels for name in CONVOLUTIONS]
    assert all(n < m for n, m in zip(sorted(widths), (16, 24, 32), strict=True))
    kept = sum(getattr(small, name).weight.numel() for name in CONVOLUTIONS)
    assert kept <= 0.5 * sum(getattr(given, name).weight.numel() for name in CONVOLUTIONS)
    assert len(ran["epochs"]) == 2 * 3  # rounds, iterations
    assert ran["after"] >= accuracy(uniform(0.5, rows=True))
    assert ran["after"] >= ran["before"] - 0.1
    assert all(
        torch.equal(x, y) for x, y in zip(given.parameters(), trained().parameters(), strict=True)
    )
    saved = torch.load("small.pth")
    assert saved["conv1.weight"].shape[0] == widths[0]


def test_v24_amc(program, caplog):
    with caplog.at_level(logging.WARNING, "lilliput"):
        ran = program("v24_amc")
    assert [r.getMessage() for r in caplog.records].count(_note("macs: 0.5")) == 1
    model = ran["model"]
    alive = [int((getattr(model, x).weight != 0).flatten(1).any(1).sum()) for x in CONVOLUTIONS]
    assert all(n % 4 == 0 for n in alive)
    cost = _macs([1, *alive])
    assert cost <= 0.5 * _macs([1, 16, 24, 32])
    alike = trained()
    with torch.no_grad():  # all layers alike, as far as multiples of 4 allow
        for name, width in zip(CONVOLUTIONS, (12, 16, 20), strict=True):
            layer = getattr(alike, name)
            gone = layer.weight.abs().flatten(1).sum(1).argsort()[:-width]
            layer.weight[gone], layer.bias[gone] = 0, 0
    assert _macs([1, 12, 16, 20]) <= 0.5 * _macs([1, 16, 24, 32])
    assert accuracy(model) >= accuracy(alike)


def test_v210_annealing(program):
    ran = program("v210_annealing")
    model, rules = ran["model"], ran["best_config_list"]
    assert ran["masks"] == {}
    shares = {rule["op_names"][0]: rule["sparsity"] for rule in rules}
    assert max(shares.values()) <= 0.8
    gone = 0
    for name, width, size in zip(CONVOLUTIONS, (16, 24, 32), (9, 144, 216), strict=True):
        left = getattr(model, name).out_channels
        assert left == width - round(width * shares[name])
        gone += (width - left) * size  # as masked: filters, and not yet what reads them
    assert gone >= 0.5 * (144 + 3456 + 6912)
    first, _, *others = ran["scores"]  # the second is the model as it was
    assert ran["best_score"] == max(first, *others)
    assert accuracy(model) == pytest.approx(ran["best_score"], abs=0.002)


def test_v210_autocompress(program):
    ran = program("v210_autocompress")
    count = 144 + 3456 + 6912
    assert [n <= share * count for n, share in zip(ran["left"], (0.5, 0.25), strict=True)] == [
        True
    ] * 2
    gone, _ = zeros(ran["model"], CONVOLUTIONS)
    assert 0.75 <= gone / count < 0.78
    assert {*ran["masks"]} == {*CONVOLUTIONS}
    for name, mask in ran["masks"].items():
        assert torch.equal(mask["weight"] != 0, getattr(ran["model"], name).weight != 0)
    assert len(ran["epochs"]) == 2 * 2
    assert ran["score"] == accuracy(ran["model"]) >= accuracy(trained()) - 0.03


def test_v210_amc(program):
    ran = program("v210_amc")
    convolutions = sum(row["flops"] for row in ran["rows"] if row["name"].startswith("conv"))
    assert ran["flops"] <= ran["pre_flops"] - 0.5 * convolutions
    assert ran["masks"] == {} and ran["params"] < ran["pre_params"]
    assert ran["best_acc"] == accuracy(ran["model"]) >= accuracy(trained()) - 0.1
    assert all(
        torch.equal(x, y)
        for x, y in zip(ran["given"].parameters(), trained().parameters(), strict=True)
    )


def _macs(widths):
    sizes = (64, 64, 16)
    convolutions = zip(widths[1:], widths, sizes, strict=False)
    return sum(9 * n * m * size for n, m, size in convolutions) + 160 * widths[-1]


def _note(target):
    return (
        f"AMCPruner: there is no agent to train here. The same target ({target}) is searched by "
        "sensitivities and an exact solve, Search of lilliput.torch; arguments of the agent have no effect."
    )
