"""Programs for NNI with Lightning and transformers: each ran unchanged, as a loop by hand would."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*"),
]


def smallest(score, count):
    return score.argsort()[:count].sort().values


def rows(weight):
    return (weight == 0).flatten(1).all(1).nonzero().flatten()


def steps(ran, before, count, penalty=0.0):
    """Train by hand; yield the model before each step, with its gradients."""
    model = ran["Net"]()
    model.load_state_dict(before)
    data = ran["Data"](16)
    data.setup("fit")
    loader = list(data.train_dataloader())
    for step in range(count):
        inputs, target = loader[step % len(loader)]
        model.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        yield model
        with torch.no_grad():
            gamma = model.bn1.weight
            gamma.grad += penalty * gamma.sign()
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad


def test_v210_lightning(program):
    ran = program("v210_lightning")
    score = 0
    for model in steps(ran, ran["before"], 3):
        score = score + (model.conv1.weight * model.conv1.weight.grad).square().detach()
    gone = smallest(score.sum((1, 2, 3)), 4)
    assert torch.equal(rows(ran["masks"]["conv1"]["weight"]), gone)
    assert torch.equal((ran["masks"]["conv1"]["bias"] == 0).nonzero().flatten(), gone)
    assert ran["evaluator"].data_module.trace_kwargs == {"batch_size": 16}
    torch.testing.assert_close(ran["after"]["fc.weight"], model.fc.weight.detach())
    *_, model = steps(ran, ran["slim_before"], 8 + 1, penalty=0.5)
    gone = smallest(model.bn1.weight.detach().abs(), 2)
    assert torch.equal((ran["slim_masks"]["bn1"]["weight"] == 0).nonzero().flatten(), gone)


def test_v30_lightning(program):
    ran = program("v30_lightning")
    scales = ran["qat_config"]["fc2"]["weight"]["scale"]
    torch.testing.assert_close(scales, ran["raw"].abs().amax(1) / 127)
    assert not torch.equal(ran["raw"], ran["before"]["fc2.weight"])  # it was trained
    for key, value in ran["ptq_before"].items():
        assert torch.equal(ran["ptq_after"][key], value), key
    plain = ran["Net"]()
    plain.load_state_dict(ran["ptq_before"])
    with torch.no_grad():
        hidden = torch.relu(plain.eval().norm(plain.fc1(ran["data"][:48])))
    high = float(hidden.max())
    entry = ran["ptq_config"]["fc2"]["_input_0"]
    torch.testing.assert_close(float(entry["tracked_max"]), high)
    torch.testing.assert_close(float(entry["scale"]), high / 127)


def test_v30_transformers(program):
    ran = program("v30_transformers")
    model = ran["Net"]()
    model.load_state_dict(ran["before"])
    mask, scores, seen = torch.ones(16, 20), 0, 0
    shares = {4: 0.5 * (1 - 0.5**3), 8: 0.5}
    for step in range(12):
        batch = ran["batches"][step % 4]
        model.zero_grad()
        model(**batch)["loss"].backward()
        if seen < 2:  # TaylorPruner looks at two steps, again after each update
            scores = scores + (model.fc1.weight * model.fc1.weight.grad).square().detach().sum(1)
            seen += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
            if step + 1 in shares:
                ranked = torch.where(mask[:, 0] == 0, -1.0, scores)
                mask[ranked.argsort()[: round(16 * shares[step + 1])]] = 0
                scores, seen = 0, 0
            model.fc1.weight *= mask
            model.fc1.bias *= mask[:, 0]
    assert torch.equal(ran["masks"]["fc1"]["weight"], mask)
    torch.testing.assert_close(ran["raw"], model.fc1.weight.detach())
    for key, value in ran["weights"].items():
        assert torch.equal(dict(ran["model"].named_parameters())[key], value), key
    with torch.no_grad():
        high = max(float(torch.relu(model.fc1(batch["x"])).max()) for batch in ran["batches"])
    entry = ran["calibration_config"]["fc2"]["_input_0"]
    torch.testing.assert_close(float(entry["tracked_max"]), high)
