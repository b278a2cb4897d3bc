"""A shrunk model comes back from its folder, into the original class, bit for bit."""

import copy
import json

import pytest
import torch
from torch import nn

from lilliput.compact.format import decode, encode
from lilliput.compact.tensors import Stored
from lilliput.errors import StateError
from lilliput.torch import L1NormPruner, load, speedup


class Net(nn.Module):
    def __init__(self, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.grouped = nn.Conv2d(width, width, 3, padding=1, groups=2)
        self.qkv = nn.Linear(width, 24)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = self.grouped(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2).mean(1))


class Literal(nn.Module):
    """Its forward has sizes written into it, so it can only be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 12), nn.Dropout(0.5), nn.Linear(12, 2)

    def forward(self, x):
        return self.last(self.drop(self.first(x)).view(-1, 3, 4).transpose(1, 2).reshape(-1, 12))


def shrink(model, x):
    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    return speedup(model.eval(), x)


@pytest.mark.parametrize(
    ("make", "shape", "kind"), [(Net, (2, 3, 4, 4), "module"), (Literal, (2, 4), "graph")]
)
def test_a_fresh_model_becomes_the_saved_one(make, shape, kind, tmp_path):
    x = torch.randn(shape)
    result = shrink(make(), x)
    assert result.kind == kind
    with torch.no_grad():
        for parameter in result.model.parameters():  # as fine-tuning would
            parameter.add_(torch.randn_like(parameter) * 0.1)
    result.save(tmp_path)
    loaded = load(make(), tmp_path).eval()
    assert torch.equal(loaded(x), result.model(x))
    assert loaded.state_dict().keys() == result.model.state_dict().keys()
    assert sum(p.numel() for p in loaded.parameters()) == result.parameters[1]
    assert {p.name for p in tmp_path.iterdir()} == {
        "lilliput.json",
        json.loads((tmp_path / "lilliput.json").read_text())["tensors"]["file"],
    }


def test_saving_again_replaces_the_weights(tmp_path):
    x = torch.randn(2, 3, 4, 4)
    result = shrink(Net(), x)
    result.save(tmp_path)
    nn.init.zeros_(result.model.out.weight)
    result.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert not load(Net(), tmp_path).out.weight.any()


def test_loading_keeps_the_parameters_and_the_mode_of_the_model(tmp_path):
    x = torch.randn(2, 3, 4, 4)
    shrink(Net(), x).save(tmp_path)
    fresh = Net().train()
    weight = fresh.conv.weight
    assert load(fresh, tmp_path) is fresh
    assert fresh.conv.weight is weight
    assert weight.shape == (4, 3, 3, 3)
    assert all(module.training for module in fresh.modules())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "lilliput.json").write_text("{"), "no readable shrunk model"),
        (lambda f: (f / "lilliput.json").unlink(), "no readable shrunk model"),
        (lambda f: next(f.glob("*.safetensors")).write_bytes(b"x"), "damaged"),
        (lambda f: next(f.glob("*.safetensors")).unlink(), "no readable weights"),
    ],
)
def test_a_damaged_folder_is_refused_and_the_model_stays(damage, message, tmp_path):
    shrink(Net(), torch.randn(2, 3, 4, 4)).save(tmp_path)
    damage(tmp_path)
    fresh = Net()
    before = {k: v.clone() for k, v in fresh.state_dict().items()}
    with pytest.raises(StateError, match=message):
        load(fresh, tmp_path)
    assert all(torch.equal(v, before[k]) for k, v in fresh.state_dict().items())


def test_a_folder_from_the_future_is_refused(tmp_path):
    shrink(Net(), torch.randn(2, 3, 4, 4)).save(tmp_path)
    path = tmp_path / "lilliput.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(StateError, match="format 2"):
        load(Net(), tmp_path)


def test_another_model_is_refused_with_what_differs(tmp_path):
    x = torch.randn(2, 3, 4, 4)
    result = shrink(Net(), x)
    result.save(tmp_path)
    with pytest.raises(StateError, match=r"conv\.weight has shape \[16, 3, 3, 3\]"):
        load(Net(width=16), tmp_path)
    with pytest.raises(StateError, match="the model before shrinking"):
        load(result.model, tmp_path)


def test_a_plan_that_reaches_too_far_is_refused(tmp_path):
    shrink(Net(), torch.randn(2, 3, 4, 4)).save(tmp_path)
    path = tmp_path / "lilliput.json"
    document = json.loads(path.read_text())
    document["cuts"][0]["keep"] = [0, 99]
    path.write_text(json.dumps(document))
    fresh = Net()
    with pytest.raises(StateError, match="does not fit"):
        load(fresh, tmp_path)
    assert fresh.conv.weight.shape == (8, 3, 3, 3)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("conv", "groups", 10**30),
        ("conv", "groups", 3),
        ("conv", "stride", [3, 3]),
        ("conv", "stride", [1, 1]),
        ("conv", "padding", [0, 0]),
        ("conv", "out_channels", 2),
        ("norm", "num_features", 1),
        ("", "heads", 3),
        ("", "heads", 8),
        ("", "heads", [2]),
        ("", "training", 0),
        ("", "forward", 1),
        ("nowhere", "heads", 2),
    ],
)
def test_a_plan_with_other_attributes_is_refused_and_the_model_stays(module, name, value, tmp_path):
    shrink(Net(), torch.randn(2, 3, 4, 4)).save(tmp_path)
    path = tmp_path / "lilliput.json"
    document = json.loads(path.read_text())
    added = {"module": module, "name": name, "value": value, "is_tuple": isinstance(value, list)}
    document["attributes"].append(added)
    path.write_text(json.dumps(document))
    fresh = Net().eval()
    x = torch.randn(2, 3, 4, 4)
    before, sizes = fresh(x), vars(fresh.conv).copy()
    with pytest.raises(StateError):
        load(fresh, tmp_path)
    assert torch.equal(fresh(x), before) and vars(fresh.conv) == sizes and fresh.heads == 4


def test_a_model_under_a_compressor_is_not_loaded_into(tmp_path):
    x = torch.randn(2, 3, 4, 4)
    shrink(Net(), x).save(tmp_path)
    model = Net()
    L1NormPruner(model, [{"sparsity": 0.5}], example_inputs=x).compress()
    with pytest.raises(StateError, match="a compressor is attached"):
        load(model, tmp_path)


def tiny():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.parametrize("compact", [False, True])
def test_saving_returns_the_bytes_that_were_written(compact, tmp_path):
    size = shrink(tiny(), torch.randn(2, 4)).save(tmp_path / "m", compact=compact)
    files = [tmp_path / "m"] if compact else [*(tmp_path / "m").iterdir()]
    assert size == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (torch.float32, torch.float16),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
    ],
)
def test_a_model_of_another_type_is_refused_and_stays(saved, here, compact, tmp_path):
    model, x = tiny().to(saved), torch.randn(2, 4, dtype=saved)
    shrink(model, x).save(tmp_path / "m", compact=compact)
    other = tiny().to(here)
    before = copy.deepcopy(other.state_dict())
    names = f"'0.weight' is {saved}, expected {here}".replace("torch.", "")
    with pytest.raises(StateError, match=names):
        load(other, tmp_path / "m")
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())
    assert torch.equal(load(tiny().to(saved), tmp_path / "m")(x), model(x))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_a_made_up_file_with_one_tensor_of_another_type_is_refused(dtype, tmp_path):
    model, x, path = tiny(), torch.randn(2, 4), tmp_path / "m.lil"
    shrink(model, x).save(path, compact=True)
    content = decode(path.read_bytes())
    bias = content.tensors["2.bias"].array().astype(dtype)
    path.write_bytes(encode({**content.tensors, "2.bias": Stored.of(bias)}, content.note))
    other = tiny()
    with pytest.raises(StateError, match=f"'2.bias' is {dtype}, expected float32"):
        load(other, path)
    assert other[0].out_features == 8
