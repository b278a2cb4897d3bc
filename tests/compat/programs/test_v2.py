"""Programs for NNI 2.0 to 2.10, both stacks: each ran unchanged, and its numbers are right."""

import torch
from torch.nn import functional as F


def smallest(score, count):
    return score.argsort()[:count].sort().values


def rows(weight):
    return (weight == 0).flatten(1).all(1).nonzero().flatten()


def test_v20_level(program):
    ran = program("v20_level")
    assert set(ran["masks"]) == {"conv1", "conv2"}
    for name, mask in ran["masks"].items():
        weight = ran["state"][f"{name}.weight"]
        assert int((weight == 0).sum()) == round(0.8 * weight.numel())
        assert torch.equal(mask["weight"].bool(), weight != 0)
    assert (ran["state"]["fc.weight"] != 0).all()


def test_v20_dorefa(program):
    ran = program("v20_dorefa")
    for name in ("conv1", "conv2"):
        raw = dict(ran["model"].named_parameters())[f"{name}.weight"]
        squeezed = torch.tanh(raw)
        unit = squeezed / (2 * squeezed.abs().max()) + 0.5
        shown = getattr(ran["model"], name).weight
        torch.testing.assert_close(shown, 2 * (unit * 15).round() / 15 - 1)


def test_v20_seven_arguments(program):
    ran = program("v20_seven_arguments")
    model, x = ran["model"], ran["x"]
    raw = dict(model.named_parameters())["weight"]
    plain = F.linear(x, (raw * 2).round() / 2, model.bias).detach()
    grad = ran["grad"] * (plain.abs() <= 1)
    assert 0 < (plain.abs() <= 1).float().mean() < 1
    torch.testing.assert_close(raw.grad, grad.T @ x)
    seen = {str(kind.value): rest for kind, *rest in ran["ClipGrad"].seen}
    assert seen.keys() == {"output", "weight"}
    assert [float(value) for value in seen["output"]] == [0.5, 3.0, 0.0, 15.0]
    assert [float(value) for value in seen["weight"]] == [0.5, 3.0, 0.0, 255.0]


def test_v24_agp(program):
    ran = program("v24_agp")
    assert ran["calls"] == [0, 1, 2, 3]
    curve = [0.8 * (1 - (1 - epoch / 3) ** 3) for epoch in range(4)]
    expected = [round(576 * sparsity) / 576 for sparsity in curve for _ in range(2)]
    torch.testing.assert_close(torch.tensor(ran["sparsities"]), torch.tensor(expected))
    assert not ran["model"].training  # as it was
    assert ran["remaining"].keys() == {"conv1", "conv2"}


def test_v24_slim(program):
    ran = program("v24_slim")
    assert ran["calls"] == [0, 1, 2]
    model = ran["Net"]()
    model.load_state_dict(ran["before"])
    norms = (model.bn1.weight, model.bn2.weight)
    for _ in range(3):  # by hand: three epochs of two steps, under the penalty
        for data, target in ran["batches"](2):
            model.zero_grad()
            F.cross_entropy(model(data), target).backward()
            with torch.no_grad():
                for gamma in norms:
                    gamma.grad += 0.5 * gamma.sign()
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
    trained = torch.cat(norms).detach()
    expected = trained.index_fill(0, trained.abs().argsort()[:8], 0.0)
    gammas = torch.cat([ran["model"].bn1.weight, ran["model"].bn2.weight]).detach()
    torch.testing.assert_close(gammas, expected)
    assert torch.equal(gammas == 0, expected == 0)
    torch.testing.assert_close(ran["model"].fc.weight, model.fc.weight)


def test_v24_taylor(program):
    ran = program("v24_taylor")
    assert ran["calls"] == [0]
    score = sum(ran["seen"]).sum((1, 2, 3))
    assert torch.equal(rows(ran["model"].conv2.weight), smallest(score, 4))


def test_v24_mean_activation(program):
    ran = program("v24_mean_activation")
    data, _ = next(ran["batches"](1))
    means = F.conv2d(data, ran["weight"], ran["bias"]).relu().mean((0, 2, 3))
    assert torch.equal(rows(ran["model"].conv1.weight), smallest(means, 2))


def test_v210_l1norm(program):
    ran = program("v210_l1norm")
    assert ran["sparsity"] == {"conv1": 0.5, "conv2": 0.5}
    gone = smallest(ran["before"].abs().sum((1, 2, 3)), 4)
    assert torch.equal(rows(ran["masks"]["conv2"]["weight"]), gone)
    assert ran["wrapper"].name == "conv2"
    assert ran["counts"] == {"conv1": (4, 8), "conv2": (4, 8)}
    assert {kind.__name__ for kind in ran["kinds"]} == {"Net", "Conv2d", "BatchNorm2d", "Linear"}
    assert torch.nn.Conv2d in ran["kinds"]  # unwrapped
    model = ran["model"]
    assert (model.conv1.out_channels, model.conv2.out_channels, model.fc.in_features) == (4, 4, 64)


def test_v210_taylor(program):
    ran = program("v210_taylor")
    assert ran["runs"] == [(3, None)]
    score = sum(ran["seen"][:3]).sum((1, 2, 3))
    assert torch.equal(rows(ran["masks"]["conv2"]["weight"]), smallest(score, 4))
    assert ran["optimizer"].trace_kwargs == {"lr": 0.01}
    assert type(ran["optimizer"]) is torch.optim.SGD


def test_v210_taylor_trainer(program):
    ran = program("v210_taylor_trainer")
    score = sum(ran["seen"]).sum((1, 2, 3))
    assert torch.equal(rows(ran["masks"]["conv2"]["weight"]), smallest(score, 4))


def test_v210_agp(program):
    ran = program("v210_agp")
    curve = [0.75 * (1 - (1 - iteration / 4) ** 3) for iteration in range(5)]
    assert ran["zeros"] == [round(8 * sparsity) for sparsity in curve]  # fine-tuned after each
    assert len(rows(ran["masks"]["conv2"]["weight"])) == 6
    assert ran["best"] is ran["model"]


def test_v210_iterative(program):
    ran = program("v210_iterative")
    assert ran["widths"] == [(8, 0), (8, 1), (8, 3), (4, 0)]  # cut out before the last fine-tuning
    score = (ran["seen"][0] + ran["seen"][1]).sum((1, 2, 3))  # two batches for the first pruning
    assert torch.equal(ran["gone"][1], smallest(score, 1))
    model = ran["model"]
    assert (model.conv2.out_channels, model.bn2.num_features, model.fc.in_features) == (4, 4, 64)
    assert ran["masks"] == {}
    assert len(ran["seen"]) == 3 * 2


def test_v24_admm(program):
    ran = program("v24_admm")
    assert ran["epochs"] == list(range(6)) and set(ran["rates"]) == {1e-3}
    assert int((ran["model"][0].weight == 0).sum()) == 96
    assert ran["pruner"].get_modules_wrapper()[0].config["rho"] == 1e-2
    assert bool((ran["pruner"].get_modules_wrapper()[0].dual != 0).any())


def test_v210_admm(program):
    ran = program("v210_admm")
    assert ran["calls"] == [0.0] * 6  # masks come in the end
    rows = ran["masks"]["0"]["weight"].sum(1)
    assert sorted(rows.tolist()) == [0.0] * 8 + [8.0] * 8


def test_v210_lottery(program):
    ran = program("v210_lottery")
    assert ran["zeros"] == [round(128 * (1 - 0.4 ** (i / 3))) for i in range(4)]
    assert ran["kept"] == [True] * 4
    assert int((ran["masks"]["0"]["weight"] == 0).sum()) == ran["zeros"][-1]


def test_v210_balance(program):
    ran = program("v210_balance")
    blocks = ran["before"].abs().reshape(16, 8, 4)
    smallest_two = blocks.argsort(-1)[..., :2]
    expected = torch.ones_like(blocks).scatter(-1, smallest_two, 0.0).reshape(16, 32)
    assert torch.equal(ran["masks"]["0"]["weight"], expected)
    assert torch.equal(ran["model"][0].weight, ran["before"] * expected)
