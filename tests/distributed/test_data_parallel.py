"""DataParallel: replicas made at each forward compute with masks of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy
from torch import Tensor, nn

from lilliput.torch import LevelPruner, Quantizer


def replicate(model: nn.Module, is_first: bool) -> nn.Module:
    """Copy a model as torch.nn.parallel.replicate does for one device, without having one.

    The copy on the first device shares its buffers with the model; all others get copies. Parameters
    become plain attributes that lead gradients back to the model.
    """
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            setattr(replica, name, copies[child])
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter.clone())
        for name, buffer in module._buffers.items():
            if buffer is None or is_first:
                replica._buffers[name] = buffer
            else:
                setattr(replica, name, buffer.clone())
    return copies[model]


def mask_of(layer: Any) -> Tensor:
    """Return the mask that travels with a layer: not the pruner's, but the one this copy holds."""
    (mask,) = layer.buffers()
    return mask


def test_data_parallel_on_cpu_trains_like_the_plain_module() -> None:
    model = toy.Net()
    parallel = nn.DataParallel(model)
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    pruner = toy.compress("agp", parallel, optimizer)
    toy.train(parallel, optimizer, pruner)
    alone = toy.train_alone("agp")
    toy.assert_bitwise_equal(toy.masks_of(pruner), alone["masks"])
    toy.assert_bitwise_equal(toy.weights_of(model), alone["weights"])
    assert torch.equal(parallel(toy.probe()), alone["outputs"])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("algorithm", list(toy.ALGORITHMS))
def test_a_replica_computes_what_the_model_computes(algorithm: str, is_first: bool) -> None:
    model = toy.Net()
    toy.compress(algorithm, model)
    replica = replicate(model, is_first)
    assert not list(replica.parameters())
    assert torch.equal(replica(toy.probe()), model(toy.probe()))
    assert not torch.equal(replica(toy.probe()), toy.Net()(toy.probe()))


def test_a_replica_is_masked_by_the_mask_it_holds() -> None:
    model = toy.Net()
    pruner = LevelPruner(model, [{"op_names": ["body"], "sparsity": 0.5}])
    pruner.compress()
    expected = model(toy.probe())
    replica = replicate(model, is_first=False)
    mask_of(replica.body).zero_()
    assert not replica.body.weight.any()
    alone = replica.head(replica.body.bias.tanh()).expand(toy.BATCH, 1)
    # One row and a batch may be added up in another order, depending on the processor.
    torch.testing.assert_close(replica(toy.probe()), alone, rtol=1e-12, atol=1e-12)
    assert mask_of(model.body).any()
    assert torch.equal(model(toy.probe()), expected)


def test_gradients_of_replicas_add_up_to_those_of_the_masked_model() -> None:
    model = toy.Net()
    pruner = toy.compress("level", model)
    first, second = toy.probe().chunk(2)
    replicate(model, is_first=True)(first).square().sum().backward()
    replicate(model, is_first=False)(second).square().sum().backward()
    received = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model(toy.probe()).square().sum().backward()
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    toy.assert_equal_but_for_rounding(received, expected)
    toy.assert_pruned_weights_are_zero(toy.masks_of(pruner), received)


class Counter(Quantizer):
    """Counts its calls in a buffer, in place: a new tensor would be lost with the replica."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.set_wrappers_attribute("calls", torch.zeros(()))

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        wrapper.calls.add_(1)
        return weight


def test_a_buffer_updated_in_place_by_the_first_replica_is_updated_in_the_model() -> None:
    model = toy.Net()
    quantizer = Counter(model, [{"op_names": ["body"], "quant_types": ["weight"]}])
    quantizer.compress()
    replicate(model, is_first=True)(toy.probe())
    replicate(model, is_first=False)(toy.probe())
    assert quantizer.get_modules_wrapper()[0].calls == 1
