"""FSDP2 (``fully_shard``), on two real processes: weights are sharded, masks are whole everywhere."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from launch import RANKS, run_on_two_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lilliput.torch import CompressionState, LevelPruner, LSQQuantizer

ORDERS = ["compress then shard", "shard then compress"]


def shard(model: toy.Net) -> None:
    """Shard two layers on their own and leave the head to the root, which FSDP2 treats apart."""
    mesh = init_device_mesh("cpu", (RANKS,))
    for module in (model.conv, model.body, model):
        fully_shard(module, mesh=mesh)


def build(algorithm: str, order: str, optimizer: str = "sgd") -> tuple[Any, ...]:
    model = toy.Net()
    if order == "shard then compress":
        shard(model)
        rule = toy.OPTIMIZERS[optimizer](model.parameters())
        return model, rule, toy.compress(algorithm, model, rule)
    compressor = toy.compress(algorithm, model)
    shard(model)
    rule = toy.OPTIMIZERS[optimizer](model.parameters())
    compressor.bind_optimizer(rule)  # made last, since fully_shard replaces the parameters
    return model, rule, compressor


def reshard(model: toy.Net) -> None:
    """Give the gathered weights up, which the root keeps after a forward without backward."""
    for module in (model.conv, model.body, model):
        module.reshard()


def train_under_fsdp2(rank: int, algorithm: str, order: str, optimizer: str) -> dict[str, Any]:
    model, rule, compressor = build(algorithm, order, optimizer)
    result = {
        "sparsities": toy.train(model, rule, compressor, rank, RANKS),
        "masks": toy.masks_of(compressor),
        "weights": toy.weights_of(model),
        "raw": {f"{w.name}.weight": w.weight.detach() for w in compressor.get_wrappers()},
        "state": compressor.state().tensors,
        "is_sharded": all(isinstance(p, DTensor) for p in model.parameters()),
        "outputs": model(toy.probe()).detach(),
    }
    reshard(model)
    compressor.strip()
    result["weights_after_strip"] = toy.weights_of(model)
    result["outputs_after_strip"] = model(toy.probe()).detach()
    reshard(model)
    result["keys_after_strip"] = list(model.state_dict())
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train on two ranks, once for all the tests that look at the same run."""

    @functools.cache
    def run(*arguments: str) -> list[dict[str, Any]]:
        return run_on_two_ranks(train_under_fsdp2, tmp_path_factory.mktemp("run"), *arguments)

    return run


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x != next(iter(toy.OPTIMIZERS))))
        for x in toy.OPTIMIZERS
    ],
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", list(toy.ALGORITHMS))
def test_ranks_agree_bitwise_and_with_one_process(
    algorithm: str, order: str, optimizer: str, trained: Any
) -> None:
    first, second = ranks = trained(algorithm, order, optimizer)
    alone = toy.train_alone(algorithm, optimizer)
    toy.assert_bitwise_equal(first["masks"], second["masks"])
    toy.assert_bitwise_equal(first["weights"], second["weights"])
    toy.assert_bitwise_equal(first["masks"], alone["masks"])
    toy.assert_equal_but_for_rounding(first["weights"], alone["weights"])
    toy.assert_pruned_weights_are_zero(first["masks"], first["weights"], algorithm != "naive")
    assert first["sparsities"] == alone["sparsities"]
    if algorithm == "agp":
        start, middle, end = first["sparsities"]
        assert 0 < start < middle < end
    for result in ranks:
        assert result["is_sharded"]
        torch.testing.assert_close(result["outputs"], alone["outputs"], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", list(toy.ALGORITHMS))
def test_the_weight_of_a_wrapper_is_gathered_in_full(
    algorithm: str, order: str, trained: Any
) -> None:
    for result in trained(algorithm, order, "sgd"):
        assert len(result["raw"]) == 3
        for name, weight in result["raw"].items():
            assert torch.equal(weight, result["weights"][name]), name


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", ["level", "agp"])
def test_the_state_holds_the_masks_of_one_process(algorithm: str, order: str, trained: Any) -> None:
    alone = toy.train_alone(algorithm)
    for result in trained(algorithm, order, "sgd"):
        masks = {name: tensors["weight_mask"] for name, tensors in result["state"].items()}
        toy.assert_bitwise_equal(masks, alone["masks"])


@pytest.mark.parametrize("optimizer", list(toy.OPTIMIZERS))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", ["level", "agp"])
def test_strip_leaves_a_plain_model_with_the_same_outputs(
    algorithm: str, order: str, optimizer: str, trained: Any
) -> None:
    for result in trained(algorithm, order, optimizer):
        assert torch.equal(result["outputs"], result["outputs_after_strip"])
        toy.assert_bitwise_equal(result["weights"], result["weights_after_strip"])
        toy.assert_pruned_weights_are_zero(result["masks"], result["weights_after_strip"])
        assert result["keys_after_strip"] == list(toy.Net().state_dict())


# A forward without a backward leaves the root's own weights gathered: copies that FSDP2 throws away
# at the next reshard. The tests below come between such an evaluation and that reshard.


def evaluate_before_each_update(rank: int, order: str) -> dict[str, Any]:
    model, rule, compressor = build("agp", order)
    for epoch in range(toy.EPOCHS):
        with torch.no_grad():
            model(toy.probe())
        compressor.update_epoch(epoch)
        toy.train_epoch(model, rule, epoch, rank, RANKS)
    return {"masks": toy.masks_of(compressor), "weights": toy.weights_of(model)}


@pytest.mark.parametrize("order", ORDERS)
def test_masks_updated_right_after_an_evaluation_reach_the_shards(
    order: str, tmp_path: Path
) -> None:
    first, second = run_on_two_ranks(evaluate_before_each_update, tmp_path, order)
    alone = toy.train_alone("agp")
    toy.assert_bitwise_equal(first["masks"], second["masks"])
    toy.assert_bitwise_equal(first["masks"], alone["masks"])
    toy.assert_pruned_weights_are_zero(first["masks"], first["weights"])
    toy.assert_equal_but_for_rounding(first["weights"], alone["weights"])


def strip_after_evaluation(rank: int) -> dict[str, Any]:
    model = toy.Net()
    shard(model)
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    # Not told of the optimizer, the pruner cannot stop momentum from moving pruned weights: they are
    # masked in each forward, and it is for strip() to make them zero.
    pruner = toy.compress("agp", model)
    toy.train(model, optimizer, pruner, rank, RANKS)
    with torch.no_grad():
        before = model(toy.probe())
    masks = toy.masks_of(pruner)
    pruner.strip()
    reshard(model)
    with torch.no_grad():
        after = model(toy.probe())
    reshard(model)
    return {"masks": masks, "weights": toy.weights_of(model), "before": before, "after": after}


def test_strip_right_after_an_evaluation_reaches_the_shards(tmp_path: Path) -> None:
    for result in run_on_two_ranks(strip_after_evaluation, tmp_path):
        toy.assert_pruned_weights_are_zero(result["masks"], result["weights"])
        assert torch.equal(result["before"], result["after"])


def compress_after_evaluation(rank: int) -> dict[str, Any]:
    model = toy.Net()
    shard(model)
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    with torch.no_grad():
        model(toy.probe())
    pruner = LevelPruner(model, [{"op_names": ["head"], "sparsity": 0.5}], optimizer)
    pruner.compress()
    toy.train(model, optimizer, pruner, rank, RANKS)
    return {"masks": toy.masks_of(pruner), "weights": toy.weights_of(model)}


def test_a_pruner_made_right_after_an_evaluation_reaches_the_shards(tmp_path: Path) -> None:
    for result in run_on_two_ranks(compress_after_evaluation, tmp_path):
        toy.assert_pruned_weights_are_zero(result["masks"], result["weights"])


def export_from_each_rank(rank: int, folder: str, algorithm: str) -> dict[str, Any]:
    model, rule, compressor = build(algorithm, "shard then compress")
    toy.train(model, rule, compressor, rank, RANKS)
    compressor.export_model(f"{folder}/model{rank}.pt")
    return {}


@pytest.mark.parametrize("algorithm", list(toy.ALGORITHMS))
def test_the_exported_model_is_that_of_one_process(algorithm: str, tmp_path: Path) -> None:
    run_on_two_ranks(export_from_each_rank, tmp_path, str(tmp_path), algorithm)
    model = toy.Net()
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    compressor = toy.compress(algorithm, model, optimizer)
    toy.train(model, optimizer, compressor)
    compressor.export_model(str(tmp_path / "alone.pt"))
    alone = torch.load(tmp_path / "alone.pt", weights_only=True)
    for rank in range(RANKS):
        exported = torch.load(tmp_path / f"model{rank}.pt", weights_only=True)
        toy.assert_equal_but_for_rounding(exported, alone)


def save_from_rank_0(rank: int, folder: str) -> dict[str, Any]:
    model, rule, compressor = build("agp", "shard then compress")
    toy.train(model, rule, compressor, rank, RANKS)
    state = compressor.state()
    if rank == 0:
        state.save(folder)
    return {"types": [wrapper.type for wrapper in compressor.get_wrappers()]}


def test_a_state_saved_under_fsdp2_continues_in_one_process(tmp_path: Path) -> None:
    run_on_two_ranks(save_from_rank_0, tmp_path, str(tmp_path / "state"))
    pruner = toy.compress("agp", toy.Net())
    pruner.load_state(CompressionState.load(tmp_path / "state"))
    toy.assert_bitwise_equal(toy.masks_of(pruner), toy.train_alone("agp")["masks"])
    assert pruner.now_epoch == toy.EPOCHS - 1


def test_layers_that_are_sharded_keep_the_name_of_their_type(tmp_path: Path) -> None:
    for result in run_on_two_ranks(save_from_rank_0, tmp_path, str(tmp_path / "state")):
        assert result["types"] == ["Conv2d", "Linear", "Linear"]


def learn_scales(rank: int | None, optimizer: str) -> dict[str, Any]:
    """Train an LSQ model with clipped gradients: on half of each batch, or alone on all of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    if rank is not None:
        mesh = init_device_mesh("cpu", (RANKS,))
        for module in (model[0], model[2], model):
            fully_shard(module, mesh=mesh)
    rule = toy.OPTIMIZERS[optimizer](model.parameters())
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 4}]
    rules += [{"op_names": ["0"], "quant_types": ["input", "weight"], "quant_bits": 4}]
    quantizer = LSQQuantizer(model, rules, rule)
    quantizer.compress()
    norms = []
    for batch in torch.rand(5, 8, 4, generator=torch.Generator().manual_seed(1)):
        batch[::4] = 1  # scales start by the largest input, the same in both halves
        rule.zero_grad()
        part = batch if rank is None else batch.chunk(RANKS)[rank]
        model(part).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        norms.append(norm if rank is None else norm.full_tensor())
        rule.step()
    learned = [
        (w, name) for w in quantizer.get_modules_wrapper() for name, _ in w.named_parameters()
    ]
    state = quantizer.state()
    result = {
        "norms": torch.stack(norms),
        "scales": {f"{w.name}.{name}": getattr(w, name).detach().clone() for w, name in learned},
        "saved": {f"{w.name}.{name}": state.tensors[w.name][name] for w, name in learned},
    }
    with torch.no_grad():
        for wrapper, name in learned:
            getattr(wrapper, name).fill_(1)
    quantizer.load_state(state)
    result["loaded"] = {
        f"{w.name}.{name}": getattr(w, name).detach().clone() for w, name in learned
    }
    if rank is not None:
        model.reshard()
    quantizer.strip()
    result["weights"] = toy.weights_of(model)
    result["learned_by"] = sum(len(group["params"]) for group in rule.param_groups)
    return result


@pytest.mark.parametrize("optimizer", list(toy.OPTIMIZERS))
def test_learned_scales_and_clipping_are_those_of_one_process(
    optimizer: str, tmp_path: Path
) -> None:
    first, second = run_on_two_ranks(learn_scales, tmp_path, optimizer)
    alone = learn_scales(None, optimizer)
    assert len(alone["scales"]) == 3
    assert (alone["norms"] > 0.01).all()  # each step is clipped
    for result in (first, second):
        assert result["learned_by"] == 4  # the weights and biases alone, after strip()
        toy.assert_bitwise_equal(result["scales"], first["scales"])
        toy.assert_bitwise_equal(result["weights"], first["weights"])
        toy.assert_bitwise_equal(result["saved"], result["scales"])
        toy.assert_bitwise_equal(result["loaded"], result["scales"])
        torch.testing.assert_close(result["norms"], alone["norms"], rtol=1e-5, atol=0)
        torch.testing.assert_close(result["scales"], alone["scales"], rtol=1e-5, atol=0)
        torch.testing.assert_close(result["weights"], alone["weights"], rtol=1e-5, atol=1e-6)
