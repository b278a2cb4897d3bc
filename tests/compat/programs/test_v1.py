"""Programs for NNI 1.1 to 1.9: each ran unchanged, and its numbers are those of plain PyTorch."""

import torch
from torch.nn import functional as F

LAYERS = ("conv1", "conv2", "fc")


def smallest(score, count):
    return score.argsort()[:count].sort().values


def rows(weight):
    """Return the output channels that are zero as a whole."""
    return (weight == 0).flatten(1).all(1).nonzero().flatten()


def test_v11_level(program):
    ran = program("v11_level")
    for name in LAYERS:
        before = ran["before"][f"{name}.weight"]
        count = round(0.8 * before.numel())
        threshold = before.abs().flatten().sort().values[count]
        expected = torch.where(before.abs() >= threshold, before, 0)
        assert torch.equal(getattr(ran["model"], name).weight, expected)


def test_v11_custom_pruner(program):
    ran = program("v11_custom_pruner")
    assert ran["pruner"].seen == [("Conv2d", "conv1", True), ("Conv2d", "conv2", True)]
    for name in ("conv1", "conv2"):
        before = ran["before"][f"{name}.weight"]
        threshold = before.abs().flatten().sort().values[int(0.25 * before.numel()) - 1]
        expected = torch.where(before.abs() > threshold, before, 0)
        assert torch.equal(getattr(ran["model"], name).weight, expected)


def test_v11_agp(program):
    ran = program("v11_agp")
    curve = [0.8 * (1 - (1 - epoch / 4) ** 3) for epoch in range(5)]
    assert ran["zeros"] == [round(sparsity * 1280) for sparsity in curve]


def test_v19_l1_speedup(program):
    ran = program("v19_l1_speedup")
    for name in ("conv1", "conv2"):
        before = ran["before"][f"{name}.weight"]
        gone = smallest(before.abs().sum((1, 2, 3)), 4)
        assert set(ran["masks"][name]) == {"weight", "bias"}
        assert torch.equal(rows(ran["masks"][name]["weight"]), gone)
        assert torch.equal((ran["masks"][name]["bias"] == 0).nonzero().flatten(), gone)
        assert torch.equal(rows(ran["pruned"][f"{name}.weight"]), gone)
        assert ran["pruned"].keys() == ran["before"].keys()
    model = ran["model"]
    assert (model.conv1.out_channels, model.conv2.in_channels, model.conv2.out_channels) == (
        4,
        4,
        4,
    )
    assert model.fc.in_features == 4 * 16


def test_v19_dependency_aware(program):
    ran = program("v19_dependency_aware")
    wrappers = {wrapper.name: wrapper for wrapper in ran["pruner"].get_modules_wrapper()}
    norms = {name: weight.abs().sum((1, 2, 3)) for name, weight in ran["weights"].items()}
    together = smallest(norms["conv1"] + norms["conv2"], 6)
    assert torch.equal(rows(wrappers["conv1"].weight_mask), together)
    assert torch.equal(rows(wrappers["conv2"].weight_mask), together)
    for pruner in (ran["pruner"], ran["fpgm"]):
        masks = {w.name: w.weight_mask for w in pruner.get_modules_wrapper()}
        assert {name: float(1 - mask.mean()) for name, mask in masks.items()} == {
            "conv1": 0.75,
            "conv2": 0.75,
            **({"conv3": 0.75} if "conv3" in masks else {}),
        }
        assert pruner.companions() == []


def test_v19_taylor(program):
    ran = program("v19_taylor")
    score = (ran["weights"][0] * ran["gradients"][0]).square().sum((1, 2, 3))  # one batch
    assert torch.equal(rows(ran["model"].conv2.weight), smallest(score, 4))


def test_v19_apoz(program):
    ran = program("v19_apoz")
    zeros = torch.cat(ran["outputs"]).eq(0).float().mean((0, 2, 3))
    gone = zeros.argsort(descending=True)[:4].sort().values
    assert torch.equal(rows(ran["model"].conv1.weight), gone)


def test_v19_slim(program):
    ran = program("v19_slim")
    threshold = ran["gammas"].abs().sort().values[8]
    expected = torch.where(ran["gammas"].abs() >= threshold, ran["gammas"], 0)
    model = ran["model"]
    assert torch.equal(torch.cat([model.bn1.weight, model.bn2.weight]), expected)


def test_v19_wrapped_attributes(program):
    ran = program("v19_wrapped_attributes")
    assert ran["asked"] == {
        "name": "conv1",
        "sparsity": 0.5,
        "is its module": True,
        "zeros": 36,
        "bias mask": None,
        "calculated": True,
        "weight": (8, 1, 3, 3),
    }
    assert ran["missing"] is False
    ran["pruner"].strip()
    assert not hasattr(ran["model"].conv1, "weight_mask")


def test_v19_gradient_pruner(program):
    ran = program("v19_gradient_pruner")
    threshold = ran["score"].flatten().sort().values[640 - 1]
    (wrapper,) = ran["pruner"].get_modules_wrapper()
    assert wrapper.if_calculated is True  # the weight was a Parameter
    assert torch.equal(wrapper.weight_mask.bool(), ran["score"] > threshold)
    assert torch.equal(ran["model"].fc.weight != 0, ran["score"] > threshold)


def test_v19_wrapper_quantizer(program):
    ran = program("v19_wrapper_quantizer")
    before, x = ran["before"], ran["features"][0]
    scale = before.abs().max() / 127
    weight = (before / scale).round() * scale
    assert torch.equal(ran["output"], (F.linear(x, weight, ran["bias"]) * 16).round() / 16)
    torch.testing.assert_close(ran["gradient"], ran["output"].grad.T @ x)  # straight through
    torch.testing.assert_close(ran["raw"].detach(), before - 0.1 * ran["gradient"])


def rounded(tensor, low, high):
    """Round to uint8 over a range that holds zero, by torch's own operator."""
    low, high = min(float(low.detach()), 0.0), max(float(high.detach()), 0.0)
    scale = (high - low) / 255
    return torch.fake_quantize_per_tensor_affine(tensor, scale, round(-low / scale), 0, 255)


def test_v19_qat(program):
    ran = program("v19_qat")
    model, ranges, losses = ran["Net"](), {}, []
    model.load_state_dict(ran["before"])

    def layer(name, x):  # weights over what they are, outputs over moving averages
        module = model.get_submodule(name)
        weight = rounded(module.weight, module.weight.min(), module.weight.max())
        y = (F.conv2d if name != "fc" else F.linear)(x, weight, module.bias)
        seen = torch.stack([y.detach().min(), y.detach().max()])
        ranges[name] = ranges[name] + 0.01 * (seen - ranges[name]) if name in ranges else seen
        return rounded(y, *ranges[name])

    for _ in range(8):
        for data, target in ran["batches"](2):
            model.zero_grad()
            x = torch.relu(model.bn1(layer("conv1", data)))
            x = torch.relu(model.bn2(layer("conv2", x)))
            loss = F.cross_entropy(layer("fc", x.flatten(1)), target)
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.05 * parameter.grad
    assert ran["losses"][-1] < ran["losses"][0]
    torch.testing.assert_close(ran["losses"], losses, rtol=1e-4, atol=1e-4)
    trained = dict(ran["model"].named_parameters())
    for name in LAYERS:
        raw = model.get_submodule(name).weight
        torch.testing.assert_close(trained[f"{name}.weight"], raw, rtol=1e-3, atol=1e-3)
        shown = getattr(ran["model"], name).weight
        raw = trained[f"{name}.weight"]
        torch.testing.assert_close(shown, rounded(raw, raw.min(), raw.max()))


def test_v19_lottery(program):
    ran = program("v19_lottery")
    assert ran["rounds"] == [0, 1, 2, 3]
    assert ran["zeros"] == [round(128 * (1 - 0.4 ** (i / 3))) for i in range(4)]
    assert ran["kept"] == [True] * 4  # each round starts from the first weights
    assert ran["epochs_seen"] == [0] * 4  # and from the first learning rate
