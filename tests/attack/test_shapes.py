"""Every compressor on sixty shapes of models: it works to the end, or refuses and changes nothing."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from attack_models import FACTORIES
from attack_tools import ALL, Outcome, fingerprint, settings_of, summary
from torch import Tensor, nn

from lilliput.errors import LilliputError


class WrongError(Exception):
    """A promise that was not kept."""


def expect(is_true: Any, what: str) -> None:
    if not is_true:
        raise WrongError(what)


def loss_of(output: Any) -> Tensor:
    if isinstance(output, dict):
        return sum((loss_of(x) for x in output.values()), torch.zeros(()))
    if isinstance(output, (list, tuple)):
        return sum((loss_of(x) for x in output), torch.zeros(()))
    return output.double().square().mean()


def train(model: nn.Module, inputs: tuple[Any, ...], optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(*inputs))
        if loss.requires_grad:
            loss.backward()
        optimizer.step()


def optimizer_of(model: nn.Module) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained or [nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)


def fails_by_itself(name: str) -> bool:
    """Whether torch cannot train, or copy, the model as it is."""
    model, inputs = build(name)
    try:
        train(model, inputs, optimizer_of(model))
        copy.deepcopy(model)
    except Exception:
        return True
    return False


def build(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return FACTORIES[name]()


def check_masks(compressor: Any) -> dict[str, Tensor]:
    """Check that pruned weights are zero, and return the weights that strip() must leave."""
    weights = {}
    for wrapper in compressor._every_wrapper():
        info = wrapper.layer_info
        raw = wrapper.weight.detach()
        is_soft = getattr(wrapper, "is_soft", False)  # computed while the raw weight trains
        if compressor.kind == "pruner":
            pruned = wrapper.weight_mask == 0
            for owner in info.owners:
                seen = getattr(owner.module, owner.weight_name).detach()
                expect(not seen[pruned].any(), f"{wrapper.name}: a pruned weight is not zero")
                is_kept = is_soft or torch.equal(seen[~pruned], raw[~pruned])
                expect(is_kept, f"{wrapper.name}: kept weights differ")
            raw = seen if is_soft else raw * (wrapper.weight_mask != 0)
        elif "weight" in wrapper.roles:
            check_levels(wrapper, getattr(info.module, info.weight_name).detach())
        weights[wrapper.name] = raw.clone()
    return weights


def check_gradients(compressor: Any, model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Check that no gradient reaches a pruned weight, whatever name it is read by."""
    model.zero_grad()
    loss = loss_of(model(*inputs))
    if compressor.kind != "pruner" or not loss.requires_grad:
        return
    loss.backward()
    for wrapper in compressor._every_wrapper():
        info = wrapper.layer_info
        gradient = getattr(info.module._parameters.get(info.weight_name), "grad", None)
        if gradient is not None:
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            leak = gradient[wrapper.weight_mask == 0].any()
            expect(not leak, f"{wrapper.name}: a pruned weight gets a gradient")
    model.zero_grad()


def output_of(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """Return the loss in eval mode; modes and statistics stay as they are."""
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        loss = loss_of(model.eval()(*inputs))
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return loss


def check_levels(wrapper: Any, seen: Tensor) -> None:
    """Check that a quantized weight has as few values, in each channel, as its bits allow."""
    bits = wrapper.config.get("quant_bits", 1)
    bits = bits.get("weight", 8) if isinstance(bits, dict) else bits
    rows = (
        seen.transpose(0, wrapper.layer_info.out_axis).flatten(1) if seen.dim() > 1 else seen[None]
    )
    for row in rows:
        expect(len(row.unique()) <= max(2**bits, 3), f"{wrapper.name}: more than {bits} bits")


def calibrate(compressor: Any, inputs: tuple[Any, ...]) -> None:
    if hasattr(compressor, "calibrate"):
        forward = lambda model, batch: model(*inputs)  # noqa: E731
        names = compressor.calibrate.__code__.co_varnames
        if "forward" not in names and "loss" not in names:
            compressor.calibrate([inputs])
        elif "loss" in names:
            compressor.calibrate([inputs], lambda model, batch: loss_of(model(*inputs)))
        else:
            compressor.calibrate([inputs], forward)


def check_round_trip(compressor: Any, model: nn.Module, inputs: tuple[Any, ...]) -> None:
    before = output_of(model, inputs)
    compressor.load_state(compressor.state())
    after = output_of(model, inputs)
    expect(torch.equal(before, after) or before.isnan(), "a state put back changes the output")


# What a quantizer cannot change: there is nothing to round, or the output does not depend on it.
UNCHANGED = {"zero_weights", "empty_layer"}


def attack(shape: str, algorithm: str) -> Outcome:
    case, cls = f"{algorithm} on {shape}", ALL[algorithm]
    model, inputs = build(shape)
    before, keys = fingerprint(model), list(model.state_dict())
    try:
        try:
            optimizer = optimizer_of(model)
            compressor = cls(model, [settings_of(cls)], optimizer)
            compressor.compress()
        except LilliputError as error:
            expect(fingerprint(model) == before, f"refused, but the model has changed ({error})")
            return Outcome(case, "refused", str(error))
        try:
            calibrate(compressor, inputs)
        except LilliputError as error:  # a layer that is never called has no range
            compressor.strip()
            expect(fingerprint(model) == before, f"refused, and strip() leaves a change ({error})")
            return Outcome(case, "refused", str(error))
        if hasattr(compressor, "update_epoch"):
            compressor.update_epoch(0)
        train(model, inputs, optimizer)
        weights = check_masks(compressor)
        check_gradients(compressor, model, inputs)
        check_round_trip(compressor, model, inputs)
        wrappers, compressed = compressor._every_wrapper(), output_of(model, inputs)
        compressor.strip()
        is_same = torch.equal(compressed, output_of(model, inputs))
        if compressor.kind == "pruner":
            expect(is_same or compressed.isnan(), "strip() changes the output of a pruned model")
        elif shape not in UNCHANGED and compressed.isfinite():
            expect(not is_same, "the quantizer has changed nothing")
        expect(list(model.state_dict()) == keys, "strip() leaves other state-dict keys")
        for wrapper in wrappers:
            info = wrapper.layer_info
            if info.weight_name not in info.module._parameters:
                continue  # a parametrization computes it anew at each reading
            kept = torch.equal(wrapper.weight.detach(), weights[wrapper.name])
            expect(kept, f"{wrapper.name}: strip() leaves other weights")
        types = [entry[1] for entry in before if entry[0] not in ("parameters", "buffers")]
        expect(
            [type(m) for _, m in model.named_modules(remove_duplicate=False)] == types,
            "a class stays",
        )
        return Outcome(case, "works")
    except WrongError as error:
        return Outcome(case, "wrong", str(error))
    except LilliputError as error:
        return Outcome(case, "refused too late", str(error))
    except Exception as error:
        if fails_by_itself(shape):
            return Outcome(case, "torch itself fails", str(error))
        return Outcome(case, "foreign exception", f"{type(error).__name__}: {error}")


def sweep(cases: Iterable[tuple[str, str]]) -> list[Outcome]:
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [attack(*case) for case in cases]
    finally:
        logging.disable(logging.NOTSET)


EVERY = [(shape, algorithm) for shape in FACTORIES for algorithm in ALL]


def test_there_are_sixty_shapes() -> None:
    assert len(FACTORIES) >= 60


def test_a_sample_of_shapes_works_or_is_refused() -> None:
    outcomes = sweep(EVERY[:: len(EVERY) // 15])
    assert not any(x.is_broken for x in outcomes), summary(outcomes)


@pytest.mark.slow
def test_every_compressor_on_every_shape_works_or_refuses() -> None:
    outcomes = sweep(EVERY)
    print(summary(outcomes))
    assert not any(x.is_broken for x in outcomes), summary(outcomes)
