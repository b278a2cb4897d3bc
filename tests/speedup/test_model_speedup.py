"""The familiar form: a plain model, an input, and a file of masks."""

import pytest
import torch
from torch import nn

from lilliput.errors import StateError
from lilliput.torch import L1NormPruner, ModelSpeedup, preflight


def make():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten()),
        nn.Linear(6 * 4 * 4, 5),
    )
    nn.init.normal_(model[1].bias)
    return model.eval()


X = torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_masks_of_whole_groups_shrink_exactly(suffix, tmp_path):
    model, path = make(), tmp_path / f"mask.{suffix}"
    pruner = L1NormPruner(model, [{"op_types": ["Conv2d"], "sparsity": 0.5}], example_inputs=X)
    masked = pruner.compress()(X)
    pruner.export_model(str(tmp_path / "model.pth"), str(path))
    fresh = make()
    fresh.load_state_dict(torch.load(tmp_path / "model.pth", weights_only=True))
    speedup = ModelSpeedup(fresh, X, path)
    shrunk = speedup.speedup_model()
    assert shrunk is fresh
    assert shrunk[0].out_channels == 4
    assert shrunk[5].in_features == 3 * 4 * 4
    assert torch.allclose(shrunk(X), masked, atol=1e-6)
    assert speedup.result.notes == ()


def test_masks_of_filters_alone_are_completed_and_the_change_is_told(caplog):
    model = make()
    mask = torch.ones(8, 3, 3, 3)
    mask[:4] = 0
    bias = torch.ones(8)
    bias[:4] = 0
    speedup = ModelSpeedup(model, X, {"0": {"weight": mask, "bias": bias}})
    by_hand = make()
    with torch.no_grad():  # the same network without the first four channels
        shifted = by_hand[2](by_hand[1](by_hand[0](X)))
        shifted[:, :4] = 0
        expected = by_hand[5](by_hand[4](by_hand[3](shifted)))
    shrunk = speedup.speedup_model()
    assert torch.allclose(shrunk(X), expected, atol=1e-6)
    assert "extended" in caplog.text
    assert "changes the outputs" in speedup.result.notes[0]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"9.weight_mask": torch.ones(1)}, "'9.weight' is not a parameter"),
        ({"0.weight_mask": torch.ones(8)}, r"received \(8,\), expected \(8, 3, 3, 3\)"),
        ({"0.bias_mask": torch.full((8,), 0.5)}, "values other than 0 and 1"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks, message):
    with pytest.raises(StateError, match=message):
        ModelSpeedup(make(), X, masks)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(StateError, match="no readable masks"):
        ModelSpeedup(make(), X, tmp_path / "nothing.pth")


def test_preflight_says_what_can_go_and_what_is_masked_already():
    model = make()
    rules = [{"op_names": ["0"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=X).compress()
    report = preflight(model, X)
    assert {name: int(x.sum()) for name, x in report.masked.items()} == {
        "0.weight": 4,
        "3.weight": 0,
    }
    text = str(report)
    assert "2 channel groups with 14 units" in text
    assert "5.weight: they are the model's output" in text
    assert model[0].weight.shape[0] == 8
