"""Modules that keep tables made of their parameters: cut, trained and saved like any others."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.capture import capture
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.cutting import cut_all
from lilliput.graph.cuts import by_tensor
from lilliput.torch import L1NormPruner, channel_groups, export_onnx, load, speedup

SIDE, WIDTH, HEADS, KEY = 4, 32, 4, 4


class Attention(nn.Module):
    """Attention with learned position biases, looked up in each run."""

    drop = 0.0

    def __init__(self):
        super().__init__()
        self.num_heads, self.key_dim, self.scale = HEADS, KEY, KEY**-0.5
        self.d = 2 * KEY
        self.dh = self.d * HEADS
        self.qkv = nn.Linear(WIDTH, HEADS * 2 * KEY + self.dh)
        self.proj = nn.Linear(self.dh, WIDTH)
        points = list(itertools.product(range(SIDE), repeat=2))
        offsets: dict = {}
        indices = [
            offsets.setdefault((abs(a - c), abs(b - d)), len(offsets))
            for (a, b), (c, d) in itertools.product(points, points)
        ]
        self.attention_biases = nn.Parameter(torch.randn(HEADS, len(offsets)))
        indices = torch.tensor(indices).view(len(points), len(points))
        self.register_buffer("attention_bias_idxs", indices, persistent=False)

    def looked_up(self):
        return self.attention_biases[:, self.attention_bias_idxs]

    def bias(self):
        return self.looked_up()

    def heads(self):
        return self.num_heads

    def forward(self, x):
        batch, length, _ = x.shape
        sizes = [self.key_dim, self.key_dim, self.d]
        parts = self.qkv(x).view(batch, length, self.heads(), -1).split(sizes, dim=3)
        q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
        weights = (q @ k.transpose(-2, -1) * self.scale + self.bias()).softmax(-1)
        weights = F.dropout(weights, self.drop, self.training)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Levit(Attention):
    """As LeViT does it: an attribute that comes and goes with the mode."""

    @torch.no_grad()
    def train(self, mode=True):  # returns nothing, as there
        super().train(mode)
        if mode and hasattr(self, "ab"):
            del self.ab
        else:
            self.ab = self.looked_up()

    def bias(self):
        return self.looked_up() if self.training else self.ab


class TinyVit(Levit):
    """As TinyViT does it: a buffer that comes and goes with the mode."""

    @torch.no_grad()
    def train(self, mode=True):
        nn.Module.train(self, mode)
        if mode and hasattr(self, "ab"):
            del self.ab
        else:
            self.register_buffer("ab", self.looked_up(), persistent=False)


class PerDevice(Attention):
    """As timm and transformers do it: a table per device, filled by the first run in evaluation."""

    def __init__(self):
        super().__init__()
        self.attention_bias_cache = {}

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        if mode and self.attention_bias_cache:
            self.attention_bias_cache = {}
        return self

    def bias(self):
        if self.training:
            return self.looked_up()
        key = str(self.attention_biases.device)
        if key not in self.attention_bias_cache:
            self.attention_bias_cache[key] = self.looked_up()
        return self.attention_bias_cache[key]


class Renamed(PerDevice):
    """A table whose name does not tell what it is."""

    def __init__(self):
        super().__init__()
        self.held = {}

    def train(self, mode=True):
        nn.Module.train(self, mode)
        if mode:
            self.held = {}
        return self

    def bias(self):
        if self.training:
            return self.looked_up()
        if not self.held:
            self.held["table"] = self.looked_up()
        return self.held["table"]


class Net(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.stem = nn.Linear(12, WIDTH)
        self.attention = nn.ModuleList(attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.stem(x)
        for attention in self.attention:
            x = x + attention(x)
        return self.head(x.mean(1))


def inputs():
    return torch.randn(3, SIDE * SIDE, 12)


def pruned(attention, mode):
    torch.manual_seed(0)
    model, x = Net(attention), inputs()
    model.train(mode)
    with torch.no_grad():
        model(x)  # tables are filled before anything is pruned
    rules = [{"op_names": ["*.qkv"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    return model, x


def gradients(model, x):
    for parameter in model.parameters():
        parameter.grad = None
    model.train()(x).pow(2).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_trained_alike(result, masked, x):
    expected, received = gradients(masked, x), gradients(result.model, x)
    cuts = by_tensor(result.plan.cuts)
    assert set(received) == {name for name, grad in expected.items() if grad is not None}
    for name, gradient in received.items():
        wanted = cut_all(expected[name], cuts.get(name, []))
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "attention",
    [Levit, PerDevice, *(pytest.param(x, marks=pytest.mark.slow) for x in (TinyVit, Renamed))],
)
def test_every_parameter_keeps_its_gradient(attention, mode):
    model, x = pruned(attention, mode)
    masked = plain_copy(model)
    expected = masked.eval()(x)
    result = speedup(model, x)
    assert result.kind == "module" and not result.notes
    assert model.attention[0].attention_biases.shape[0] == HEADS // 2  # biases go with their heads
    assert all(x.training is mode for x in model.modules())
    if not mode:  # the table that the user's module has now is the right one
        torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model.eval()(x), expected)
    assert_trained_alike(result, masked, x)
    with torch.no_grad():
        model.attention[0].attention_biases.mul_(-2)
    assert not torch.allclose(model.train().eval()(x), expected)


@pytest.mark.parametrize("attention", [pytest.param(TinyVit, marks=pytest.mark.slow), PerDevice])
def test_a_captured_part_keeps_the_parameters_behind_a_table(attention):
    class Literal(attention):
        def heads(self):
            return 4

    model, x = pruned(Literal, False)
    masked = plain_copy(model)
    result = speedup(model, x)
    assert result.kind == "mixed" and not any("never reach" in note for note in result.notes)
    torch.testing.assert_close(model.eval()(x), masked.eval()(x))
    assert sorted(result.model.state_dict()) == sorted(masked.train().state_dict())
    assert_trained_alike(result, masked, x)


@pytest.mark.parametrize("attention", [PerDevice])
def test_dropout_beside_a_table_is_no_obstacle(attention):
    class Dropping(attention):
        drop = 0.5

    model, x = pruned(Dropping, True)
    masked = plain_copy(model)
    result = speedup(model, x)
    assert not result.notes
    torch.testing.assert_close(model.eval()(x), masked.eval()(x))


@pytest.mark.parametrize(
    ("attention", "mode"), [(TinyVit, True), (TinyVit, False), (Levit, False), (PerDevice, True)]
)
def test_a_saved_model_is_loaded_in_either_mode(attention, mode, tmp_path):
    model, x = pruned(attention, not mode)
    speedup(model, x).save(tmp_path)
    fresh = Net(attention).train(mode)
    again = load(fresh, tmp_path)
    torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("attention", [TinyVit, Renamed])
def test_the_analysis_sees_what_it_would_see_without_a_table(attention):
    expected = str(channel_groups(Net(Attention), inputs()))
    model = Net(attention).eval()
    model(inputs())
    assert str(channel_groups(model, inputs())) == expected


def test_a_branch_that_answers_otherwise_in_training_is_not_taken():
    class Odd(Levit):
        def bias(self):
            return 2 * self.looked_up() if self.training else self.ab

    plain = plain_copy(Net(Odd))
    captured = capture(plain, (inputs(),), {})
    assert captured.unread() == [f"attention.{i}.attention_biases" for i in range(2)]
    assert not any(module.training for module in plain.modules())


def test_what_is_only_called_a_cache_is_not_dropped():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.read = nn.Linear(6, 8), nn.Linear(8, 3)
            self.cache = {"gain": 2.0}

        def forward(self, x):
            self.cache.setdefault("spread", self.make.weight.std().detach())
            return self.read(self.make(x).relu() * self.cache.get("gain", 1.0))

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(2, 6)
    L1NormPruner(model, [{"op_names": ["make"], "sparsity": 0.5}], example_inputs=x).compress()
    expected = model(x)
    speedup(model, x)
    torch.testing.assert_close(model(x), expected)
    assert model.cache == {"gain": 2.0, "spread": model.make.weight.std()}  # of the weights now


@pytest.mark.slow
class MemoryBank(nn.Module):
    """Reads what it was taught once, from a dict that is called a cache; nothing makes it again."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.cache = {"bank": torch.full((8,), 3.0)}

    def forward(self, x):
        return self.last(torch.relu(self.first(x)) + self.cache.get("bank", 0.0))


def test_a_model_that_answers_otherwise_without_its_caches_is_refused():
    model, x = MemoryBank().eval(), torch.randn(2, 4)
    rules = [{"op_names": ["first"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    expected = model(x)
    with pytest.raises(UnsupportedModelError, match="its outputs change without them.*as buffers"):
        speedup(model, x)
    assert torch.equal(model(x), expected)


@pytest.mark.slow
def test_levit_of_transformers():
    from transformers import LevitConfig, LevitForImageClassification

    torch.manual_seed(0)
    config = LevitConfig(
        image_size=64, patch_size=16, stride=2, hidden_sizes=[32, 48, 64], num_labels=4,
        num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], mlp_ratio=[2, 2, 2],
        attention_ratio=[2, 2, 2], drop_path_rate=0,
    )  # fmt: skip
    model, x = LevitForImageClassification(config).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        model(x)
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": 0.5}]
    L1NormPruner(model, rules, example_inputs=x).compress()
    masked = plain_copy(model)
    result = speedup(model, x)
    assert not any("never reach" in note for note in result.notes)
    torch.testing.assert_close(
        result.model.eval()(x).logits, masked.eval()(x).logits, rtol=1e-4, atol=1e-5
    )
    for module in (masked, result.model):
        module.eval()
        for part in module.modules():
            if hasattr(part, "attention_bias_cache"):
                part.training = True
        module(x).logits.pow(2).sum().backward()
    cuts = by_tensor(result.plan.cuts)
    expected = {name: p.grad for name, p in masked.named_parameters()}
    for name, parameter in result.model.named_parameters():
        assert parameter.grad is not None, name
        wanted = cut_all(expected[name], cuts.get(name, []))
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-4)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=0, eos_token_id=1))


@pytest.mark.parametrize(("make", "kind"), [(gpt2, "Conv1D"), (llama, "Linear")])
@pytest.mark.slow
def test_language_models_with_their_default_configs(make, kind, tmp_path):
    torch.manual_seed(0)
    model, x = make().eval(), {"input_ids": torch.randint(2, 64, (2, 6))}
    rule = {"op_types": [kind], "op_names": ["re:.*mlp.(c_fc|gate_proj)"], "sparsity": 0.5}
    L1NormPruner(model, [rule], example_inputs=x).compress()

    def continued(model):
        return model.generate(**x, max_new_tokens=4, do_sample=False, use_cache=True)

    expected = continued(plain_copy(model))
    result = speedup(model, x)
    assert result.kind == "module" and result.removed
    assert model.config.use_cache and model(**x).past_key_values is not None
    assert torch.equal(continued(model), expected)
    export_onnx(model, tmp_path / "model.onnx", x, dynamic_batch=False)
    assert model.config.use_cache
