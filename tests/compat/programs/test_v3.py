"""Programs for NNI 3.0: each ran unchanged, and its numbers are right."""

import torch
from torch.nn import functional as F


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
    assert set(entry) == {"_input_0", "weight", "_output_0"}
    for target in entry.values():  # what v3 did where a rule says nothing more
        assert (target["quant_dtype"], target["quant_scheme"]) == ("int8", "symmetric")
    scale = entry["weight"]["scale"]
    torch.testing.assert_close(scale, ran["raw"].abs().max() / 127)
    integers = (ran["raw"] / scale).round().clamp(-127, 127)
    torch.testing.assert_close(ran["seen"], integers * scale)
    assert entry["_input_0"]["tracked_min"] <= 0 < entry["_input_0"]["tracked_max"]


def int8(tensor):
    scale = tensor.abs().max() / 127
    return (tensor / scale).round() * scale


def trained_by_hand(ran, steps, mask_at, starts):
    """Train the program's network in plain PyTorch, with masks and rounding written out."""
    model = ran["Net"]()
    model.load_state_dict(ran["before"])
    model.train()
    raw, mask = model.fc.weight, torch.ones_like(model.fc.weight)
    weights = [raw, model.fc.bias, *list(model.parameters())[:-2]]
    del model.fc._parameters["weight"]
    for step, batch in enumerate(ran["batches"](steps)):
        for parameter in weights:
            parameter.grad = None
        masked = raw * mask
        rounded = masked + (int8(masked.detach()) - masked).detach() if step >= starts else masked
        model.fc.weight = rounded
        ran["training_step"](batch, model).backward()
        with torch.no_grad():
            for parameter in weights:
                parameter -= 0.05 * parameter.grad
            share = mask_at(step + 1)
            if share is not None:
                scores = torch.where(mask == 0, -1.0, raw.abs()).flatten()
                mask = mask.flatten()
                mask[scores.argsort()[: round(share * scores.numel())]] = 0
                mask = mask.reshape(raw.shape)
            raw *= mask
    return raw.detach(), mask


def test_v30_fusion(program):
    ran = program("v30_fusion")
    assert ran["fused"] == [ran["quantizer"], ran["scheduled"]]
    assert ran["runs"] == [(10, None)]
    curve = {2 * n: 0.8 * (1 - (1 - n / 3) ** 3) for n in range(1, 4)}
    raw, mask = trained_by_hand(ran, 10, curve.get, starts=2)
    assert torch.equal(ran["masks"]["fc"]["weight"], mask)
    assert int((mask == 0).sum()) == 1024
    torch.testing.assert_close(ran["raw"], raw)
    torch.testing.assert_close(ran["seen"], int8(raw))
    torch.testing.assert_close(
        ran["calibration_config"]["fc"]["weight"]["scale"], raw.abs().max() / 127
    )
    assert torch.nn.Linear in ran["kinds"]  # unwrapped


def test_v30_fused_pruners(program):
    ran = program("v30_fused_pruners")
    assert ran["runs"] == [(5, None)]
    assert set(ran["masks"]) == {"conv1", "conv2"}
    gone = smallest(ran["before"]["conv1.weight"].abs().sum((1, 2, 3)), 4)
    assert torch.equal(rows(ran["masks"]["conv1"]["weight"]), gone)
    assert torch.equal(rows(ran["model"].conv1.weight), gone)
    score = sum(ran["seen"][:3]).sum((1, 2, 3))
    assert torch.equal(rows(ran["masks"]["conv2"]["weight"]), smallest(score, 4))
    assert len(ran["model"].fc.weight.unique()) <= 255


def test_v30_ptq(program):
    ran = program("v30_ptq")
    assert ran["runs"] == [(4, None)]
    assert ran["after"].keys() == ran["before"].keys()
    for key, value in ran["before"].items():
        assert torch.equal(ran["after"][key], value), key  # the norms' statistics as well
    plain = ran["Net"]()
    plain.load_state_dict(ran["before"])
    seen = {name: [] for name in ("conv2", "fc")}
    for name, tensors in seen.items():
        plain.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, tensors=tensors: tensors.append((inputs[0], output))
        )
    with torch.no_grad():
        for data, _ in ran["batches"](4):
            plain.eval()(data)
    for name, tensors in seen.items():
        for target, side in (("_input_0", 0), ("_output_0", 1)):
            entry = ran["calibration_config"][name][target]
            low = min(float(x[side].min()) for x in tensors)
            high = max(float(x[side].max()) for x in tensors)
            torch.testing.assert_close(float(entry["tracked_min"]), low)
            torch.testing.assert_close(float(entry["tracked_max"]), high)
            scale = (max(high, 0) - min(low, 0)) / 254
            torch.testing.assert_close(float(entry["scale"]), scale, rtol=1e-5, atol=0)


def test_v30_dependency(program):
    ran = program("v30_dependency")
    before = ran["before"]
    scores = {
        name: before[f"{name}.weight"].abs().sum((1, 2, 3))
        for name in ("stem", "block.conv1", "block.conv2")
    }
    together = smallest(scores["stem"] + scores["block.conv2"], 8)
    for name in ("stem", "block.conv2"):
        assert torch.equal(rows(ran["masks"][name]["weight"]), together)
    alone = smallest(scores["block.conv1"], 8)
    assert torch.equal(rows(ran["masks"]["block.conv1"]["weight"]), alone)
    norms = {name: ran["masks"][f"block.{name}"] for name in ("bn1", "bn2")}
    assert {
        name: (mask["weight"] == 0).nonzero().flatten().tolist() for name, mask in norms.items()
    } == {
        "bn1": alone.tolist(),
        "bn2": together.tolist(),
    }
    model = ran["model"]
    assert (model.stem.out_channels, model.block.conv1.out_channels, model.head.in_features) == (
        8,
        8,
        8,
    )
    torch.testing.assert_close(ran["output"], ran["masked_output"])


def test_v30_granularity(program):
    ran = program("v30_granularity")
    before = {name.partition(".")[0]: w for name, w in ran["before"].items() if "weight" in name}
    embed = ran["block_masks"]["embed"]["weight"]
    gone = smallest(before["embed"].abs().sum(0), 4)
    assert torch.equal((embed == 0).all(0).nonzero().flatten(), gone)
    assert int((embed == 0).sum()) == 4 * 32
    tiles = before["mlp"].abs().reshape(8, 8, 4, 8).sum((1, 3))
    keep = torch.ones(32).index_fill(0, tiles.flatten().argsort()[:16], 0.0).reshape(8, 4)
    expected = keep.repeat_interleave(8, 0).repeat_interleave(8, 1)
    assert torch.equal(ran["block_masks"]["mlp"]["weight"], expected)
    joined = torch.cat([before["query"].flatten(), before["key"].flatten()]).abs()
    keep = torch.ones(2048).index_fill(0, joined.argsort()[: round(0.6 * 2048)], 0.0)
    for name, part in zip(("query", "key"), keep.reshape(2, 32, 32), strict=True):
        assert torch.equal(ran["masks"][name]["weight"], part)
        assert ran["masks"][name]["bias"].all()
    assert torch.equal(ran["masks"]["out"]["weight"].bool(), before["out"].abs() >= 0.05)


def test_v30_distiller(program):
    """Six steps of SGD on 0.4 CE + 0.7 KL + 0.2 of the smaller MSE, written out in plain PyTorch."""
    ran = program("v30_distiller")
    assert ran["returned"] is ran["model"]
    model, teacher, mask = ran["Net"](), ran["teacher"], ran["masks"]["fc1"]
    model.load_state_dict({k: v for k, v in ran["before"].items() if "mask" not in k})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for data, target in ran["batches"](6):
        optimizer.zero_grad()
        first = model.fc1(data)
        logits = model.fc3(torch.tanh(model.fc2(torch.tanh(first))))
        with torch.no_grad():
            one = teacher.fc1(data)
            two = teacher.fc2(torch.tanh(one))
            wanted = teacher(data)
        kl = 4 * F.kl_div(
            (logits / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="batchmean"
        )
        loss = 0.4 * F.cross_entropy(logits, target) + 0.7 * kl
        loss = loss + 0.2 * min(F.mse_loss(first, one), F.mse_loss(first, two))
        loss.backward()
        losses.append(loss.item())
        model.fc1.weight.grad *= mask["weight"]
        model.fc1.bias.grad *= mask["bias"]
        optimizer.step()
    torch.testing.assert_close(torch.tensor(ran["losses"]), torch.tensor(losses))
    for key, value in model.state_dict().items():
        torch.testing.assert_close(ran["model"].state_dict()[key], value)


def test_v30_three_in_one(program):
    """The same five steps with mask, rounding, projection and both losses written out."""
    ran = program("v30_three_in_one")
    assert ran["distilled"] is ran["model"]
    names = [type(x).__name__ for x in ran["fused"]]
    assert names == ["Adaptive1dLayerwiseDistiller", "QATQuantizer", "LevelPruner"]
    model, teacher = ran["Net"](8), ran["teacher"]
    model.load_state_dict(ran["start"])
    mask = torch.ones(96)
    mask[ran["start"]["fc1.weight"].abs().flatten().argsort()[:48]] = 0
    mask = mask.view(8, 12)
    assert torch.equal(ran["masks"]["fc1"]["weight"], mask)
    with torch.no_grad():
        model.fc1.weight *= mask
        rows, wanted = model.fc1(ran["example"]).double(), teacher.fc1(ran["example"]).double()
        energy = 1e-3 * (rows.T @ rows).diagonal().mean() * torch.eye(8, dtype=torch.float64)
        fitted = torch.linalg.solve(rows.T @ rows + energy, rows.T @ wanted).T.float()
    projection = torch.nn.Parameter(fitted)
    optimizer = torch.optim.SGD([*model.parameters(), projection], lr=0.1)
    losses = []
    for data, target in ran["batches"](5):
        optimizer.zero_grad()
        features = model.fc1(data)
        weight = model.fc2.weight
        rounded = weight + (int8(weight) - weight).detach()
        output = F.linear(torch.relu(features), rounded, model.fc2.bias)
        with torch.no_grad():
            wanted = teacher.fc1(data)
        distance = F.mse_loss(F.linear(features, projection), wanted)
        loss = F.cross_entropy(output, target) + 0.5 * distance
        loss.backward()
        model.fc1.weight.grad *= mask
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(torch.tensor(ran["losses"]), torch.tensor(losses))
    torch.testing.assert_close(ran["distiller"].parameters()[0], projection)
    assert set(ran["calibration_config"]["fc2"]) == {"weight"}
