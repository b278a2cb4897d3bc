import copy

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.torch import DoReFaQuantizer, LevelPruner, Pruner, WeightMasker

ANY = [{"op_types": ["Linear"]}]


def pruner_returning(answer):
    class Fixed(Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            return answer

    return Fixed


@pytest.mark.parametrize(
    "answer",
    [
        {"weight_mask": torch.tensor([[1.0, 0.0], [0.0, 1.0]])},
        {"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]])},
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[True, False], [False, True]]),
        torch.tensor([[1, 0], [0, 1]]),
    ],
    ids=["dict", "short-keys", "tensor", "bool", "int"],
)
def test_masks_are_taken_in_every_form_they_were_documented(answer):
    model = nn.Linear(2, 2)
    expected = model.weight.detach().clone() * torch.eye(2)
    pruner_returning(answer)(model, ANY).compress()
    assert torch.equal(model.weight, expected)


def test_a_bias_mask_is_applied_too():
    model = nn.Linear(2, 3)
    bias = model.bias.detach().clone()
    masks = {"weight_mask": torch.ones(3, 2), "bias_mask": torch.tensor([1.0, 0.0, 1.0])}
    pruner = pruner_returning(masks)(model, ANY)
    pruner.compress()
    assert torch.equal(model.bias, bias * masks["bias_mask"])
    assert torch.equal(pruner.get_modules_wrapper()[0].bias_mask, masks["bias_mask"])
    pruner.strip()
    assert torch.equal(model.bias, bias * masks["bias_mask"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.ones(3, 3), r"received shape \(3, 3\), expected \(2, 2\)"),
        (torch.full((2, 2), 0.5), "values other than 0 and 1"),
        (torch.full((2, 2), float("nan")), "values other than 0 and 1"),
        ([[1, 0], [0, 1]], "received list, expected a tensor"),
        ({"mask": torch.ones(2, 2)}, "returned the key 'mask'"),
        ({"bias_mask": torch.ones(2)}, "no bias"),
    ],
)
def test_bad_masks_are_refused_by_layer_and_nothing_changes(answer, words):
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AlgorithmError, match=f"(?s)Fixed.*layer '0'.*{words}|{words}.*layer '0'"):
        pruner_returning(answer)(model, ANY).compress()
    assert type(model[0]) is nn.Linear
    assert list(model.state_dict()) == list(before)
    assert torch.equal(model[0].weight, before["0.weight"])


def test_masks_are_put_in_force_all_or_none():
    class SecondFails(Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            if wrapper_idx == 1:
                raise RuntimeError("second")
            return torch.zeros_like(wrapper.weight)

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first = model[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match="second"):
        SecondFails(model, ANY).compress()
    assert torch.equal(model[0].weight, first)


def test_none_leaves_the_mask_as_it_is():
    model = nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    pruner_returning(None)(model, ANY).compress()
    assert torch.equal(model.weight, weight)


def test_a_pruner_without_calc_mask_says_so():
    class Empty(Pruner):
        pass

    with pytest.raises(NotImplementedError, match="Empty must override calc_mask"):
        Empty(nn.Linear(2, 2), ANY).compress()


def test_a_masker_without_calc_mask_says_so():
    class Empty(WeightMasker):
        pass

    with pytest.raises(NotImplementedError, match="Empty must override calc_mask"):
        Empty(None, None).calc_mask(0.5, None)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Muon"])
def test_pruned_weights_stay_zero_under_any_optimizer(name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop", "Muon") else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05, weight_decay=0.1, **options)
    data = torch.randn(16, 8)

    def train():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        train()
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    pruned = model[0].weight == 0
    kept = model[0].weight[~pruned].detach().clone()
    for _ in range(5):
        train()
        assert int(pruned.sum()) == 32
        assert bool((model[0].weight[pruned] == 0).all())
        assert bool((pruner.get_modules_wrapper()[0].weight.grad[pruned] == 0).all())
    assert not torch.equal(model[0].weight[~pruned], kept)
    pruner.strip()
    assert bool((model[0].weight[pruned] == 0).all())


def test_the_optimizers_memory_of_pruned_weights_is_cleared():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    LevelPruner(model, [{"sparsity": 0.5}], optimizer).compress()
    raw = dict(model.named_parameters())["weight"]
    pruned = raw == 0
    state = optimizer.state[raw]
    assert bool((state["exp_avg"][pruned] == 0).all()) and bool(
        (state["exp_avg"][~pruned] != 0).all()
    )


@pytest.mark.parametrize("first_has_bias", [True, False])
def test_biases_of_all_owners_of_a_tied_weight_are_masked_and_stay_so_after_strip(first_has_bias):
    model = nn.Sequential(nn.Linear(3, 3, bias=first_has_bias), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    masks = {"weight_mask": torch.ones(3, 3), "bias_mask": torch.tensor([1.0, 0.0, 1.0])}
    pruner = pruner_returning(masks)(model, ANY)
    pruner.compress()
    x = torch.randn(4, 3)
    masked = model(x)
    assert model[1].bias[1] == 0 and (not first_has_bias or model[0].bias[1] == 0)
    pruner.strip()
    assert torch.equal(model(x), masked)


def test_a_second_try_after_a_failure_prunes_every_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(AlgorithmError):
        pruner.compress()
    with torch.no_grad():
        model[1].weight[0, 0] = 1.0
    pruner.compress()
    assert [int((layer.weight == 0).sum()) for layer in model] == [8, 8]


def test_pruned_weights_are_zero_even_where_an_optimizer_divides_zero_by_zero():
    torch.manual_seed(0)
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # eps underflows in half precision
    pruner = LevelPruner(model, [{"sparsity": 0.5}], optimizer)
    pruner.compress()
    pruned = pruner.get_modules_wrapper()[0].weight_mask == 0
    model(torch.ones(1, 4).half()).sum().backward()
    optimizer.step()
    assert bool((model.weight[pruned] == 0).all())


def test_one_buffer_filled_for_every_layer_gives_every_layer_its_own_mask():
    class Scratch(Pruner):
        buffer = torch.zeros(2, 2)

        def calc_mask(self, wrapper, wrapper_idx=None):
            self.buffer.fill_(wrapper_idx)
            return self.buffer

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    Scratch(model, ANY).compress()
    assert [int((layer.weight == 0).sum()) for layer in model] == [4, 0]


def test_a_layer_replaced_or_tied_after_construction_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    model[0] = nn.Linear(2, 2)
    with pytest.raises(StageError, match="layer '0' was replaced"):
        pruner.compress()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    model[1].weight = model[0].weight
    with pytest.raises(StageError, match="tied"):
        pruner.compress()


def test_a_failed_first_model_does_not_bind():
    pruner = LevelPruner(config_list=[{"sparsity": 0.5}])
    with pytest.raises(UnsupportedModelError):
        pruner.compress(object())
    assert int((pruner.compress(nn.Linear(4, 4)).weight == 0).sum()) == 8


def test_a_mask_is_not_taken_away_from_under_a_quantizer_that_moves_zero():
    model = nn.Linear(8, 8)
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    quantizer = DoReFaQuantizer(model, [{"quant_bits": 4}])
    quantizer.compress()
    zeros = model.weight == 0
    with pytest.raises(
        StageError, match="also under DoReFaQuantizer.*strip\\(\\) the quantizer first"
    ):
        pruner.strip()
    assert torch.equal(model.weight == 0, zeros)
    quantizer.strip()
    pruner.strip()
    assert torch.equal(model.weight == 0, zeros)
