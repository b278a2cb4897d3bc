"""The battery finds what is wrong with a bad algorithm, and nothing wrong with a good one."""

import itertools
import threading

import pytest
import torch

from lilliput.config.spec import PruneRule, QuantRule
from lilliput.errors import AlgorithmError, ConfigError, LilliputError
from lilliput.frameworks.torch.lab import SPECIMENS
from lilliput.testing import (
    ConformanceError,
    Specimen,
    Subject,
    TinyCNN,
    check_pruner,
    check_quantizer,
    pruner_checks,
    quantizer_checks,
)
from lilliput.torch import (
    AGPPruner,
    LevelPruner,
    NaiveQuantizer,
    OneShotPruner,
    Pruner,
    QuantGrad,
    Quantizer,
    ScoreMasker,
)

CHECKS = {check.__name__: check for check in [*pruner_checks(), *quantizer_checks()]}


def smallest(weight, count):
    mask = torch.ones_like(weight).flatten()
    mask[weight.abs().flatten().argsort(stable=True)[:count]] = 0
    return mask.view_as(weight)


def wanted(wrapper):
    return round(wrapper.weight.numel() * wrapper.config["sparsity"])


# -- good ones ------------------------------------------------------------------------------------


class Plain(Pruner):
    """Recompute the mask each time, from the weights alone."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        return {"weight_mask": smallest(wrapper.weight, wanted(wrapper))}


class Old2019(Pruner):
    """The 2019 form: a constructor of its own, weight and layer as arguments."""

    def __init__(self, configure_list):
        self.configure_list = configure_list

    def calc_mask(self, layer_info, weight):
        return smallest(weight, round(weight.numel() * layer_info.config["sparsity"]))


def make_2019(model, config_list, optimizer):
    pruner = Old2019(config_list)
    pruner.config_list = config_list
    return pruner


class ConvOnly(Plain):
    """Handles nothing but convolutions."""

    default_types = frozenset({"Conv2d"})


class WithBias(Plain):
    """Masks biases too."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        masks = super().calc_mask(wrapper)
        if wrapper.bias is not None:
            masks["bias_mask"] = smallest(wrapper.bias, wrapper.bias.numel() // 3)
        return masks


class Rounds(Quantizer):
    """Weights, inputs and outputs to an even grid around zero."""

    def _round(self, tensor, config):
        half = 2 ** (config["quant_bits"] - 1) - 1
        step = tensor.abs().max().clamp(min=1e-6) / half
        return (tensor / step).round() * step

    def quantize_weight(self, weight, config, **kwargs):
        return self._round(weight, config)

    def quantize_input(self, *inputs, config, **kwargs):
        return tuple(self._round(x, config) for x in inputs)

    def quantize_output(self, output, config, **kwargs):
        return self._round(output, config)


class OwnGradient(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return grad_output * (tensor.abs() <= 1)


class RoundsWithOwnGradient(Rounds):
    quant_grad = OwnGradient


class Offset(Quantizer):
    """An even number of levels, none of them zero."""

    def quantize_weight(self, weight, config, **kwargs):
        levels = 2 ** config["quant_bits"]
        return ((weight * levels / 2).floor().clamp(-levels / 2, levels / 2 - 1) + 0.5) * 2 / levels


@pytest.mark.parametrize(
    ("cls", "make"),
    [(Plain, None), (Old2019, make_2019), (ConvOnly, None), (WithBias, None), (LevelPruner, None)],
)
def test_correct_pruners_pass(cls, make):
    report = check_pruner(cls, make=make)
    assert list(report.seconds) == [check.__name__ for check in pruner_checks()]
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert str(report) == f"{cls.__name__} passes {len(pruner_checks())} checks."


@pytest.mark.parametrize("cls", [Rounds, RoundsWithOwnGradient, Offset])
def test_correct_quantizers_pass(cls):
    report = check_quantizer(cls)
    assert list(report.seconds) == [check.__name__ for check in quantizer_checks()]


def test_config_replaces_the_default_settings():
    check_pruner(LevelPruner, {"total_sparsity": 0.5}, skip=SLOW)
    check_pruner(LevelPruner, {"op_types": ["Linear"], "sparsity": 0.3}, skip=SLOW)
    check_pruner(AGPPruner, {"final_sparsity": 0.6, "end_epoch": 2}, skip=[*SLOW, "exact_sparsity"])


# -- bad pruners ----------------------------------------------------------------------------------

SLOW = ["compile", "export"]


class WrongShape(Pruner):
    def calc_mask(self, wrapper, wrapper_idx=None):
        return wrapper.weight.flatten() > 0


class OffByOne(Plain):
    def calc_mask(self, wrapper, wrapper_idx=None):
        return smallest(wrapper.weight, max(wanted(wrapper) - 1, 0))


class ByThreshold(Plain):
    """The classic mistake: all weights that equal the threshold go as well."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        magnitude = wrapper.weight.abs()
        if wanted(wrapper) == 0:
            return None
        return magnitude > magnitude.flatten().kthvalue(wanted(wrapper)).values


class Unrepeatable(Plain):
    calls = itertools.count()

    def calc_mask(self, wrapper, wrapper_idx=None):
        count = wanted(wrapper)
        mask = torch.ones_like(wrapper.weight).flatten()
        mask[:count] = 0
        return mask.roll(next(self.calls)).view_as(wrapper.weight)


class Reopens(Plain):
    """Prunes one end of the weight at first, the other ever after."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        is_first = not hasattr(wrapper, "was_here")
        wrapper.was_here = True
        mask = torch.ones_like(wrapper.weight).flatten()
        mask[: wanted(wrapper)] = 0
        mask = mask if is_first else mask.flip(0)
        return mask.view_as(wrapper.weight)


class EditsWeights(Plain):
    """Writes into the raw weight at once, instead of returning a mask and leaving it to the engine."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        mask = smallest(wrapper.weight, wanted(wrapper))
        wrapper.weight.mul_(mask)
        return mask


class LeavesHook(Plain):
    def bind_model(self, model):
        for module in model.modules():
            module.register_forward_hook(print_nothing)


def print_nothing(module, args, output):
    """Do nothing, and be picklable."""


class KeepsLock(Plain):
    def calc_mask(self, wrapper, wrapper_idx=None):
        wrapper.guard = threading.Lock()
        return super().calc_mask(wrapper)


class KeepsLambda(Plain):
    def calc_mask(self, wrapper, wrapper_idx=None):
        wrapper.rank = lambda: wrapper.weight.abs()
        return super().calc_mask(wrapper)


class ForgetsProgress(OneShotPruner):
    """Keeps its counter where ``state()`` does not look."""

    class Masker(ScoreMasker):
        def score(self, wrapper):
            return wrapper.weight.abs()

    masker_type = Masker
    steps = 0

    def step(self):
        self.steps += 1

    def calc_mask(self, wrapper, wrapper_idx=None):
        count = wanted(wrapper) + (5 if self.steps > 3 else 0)
        return smallest(wrapper.weight, min(count, wrapper.weight.numel()))


class TakesAnything(Plain):
    """Accepts every config by having a check that never refuses, and fails later."""

    def __init__(self, model=None, config_list=None, optimizer=None):
        try:
            super().__init__(model, config_list, optimizer)
        except ConfigError:
            super().__init__(model, [{"sparsity": 0.5}], optimizer)


class FixesDtype(Plain):
    """Turns the model to float32 behind the user's back."""

    def bind_model(self, model):
        model.float()


class WatchesForGood(Plain):
    """Takes a collector that is to be removed for one that is to stay."""

    def remove_activation_collector(self, fwd_id):
        """Forget to."""


class CountsEpochs(Plain):
    """Insists that every epoch comes once."""

    def update_epoch(self, epoch):
        if epoch in vars(self).setdefault("epochs", []):
            raise ValueError(f"epoch {epoch} came already")
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (WrongShape, "check_masks"),
        (OffByOne, "check_exact_sparsity"),
        (ByThreshold, "check_exact_sparsity"),
        (Unrepeatable, "check_determinism"),
        (Reopens, "check_pruned_weights_stay_zero"),
        (EditsWeights, "check_failing_calc_mask_leaves_model_alone"),
        (LeavesHook, "check_strip_restores_model"),
        (KeepsLock, "check_deepcopy"),
        (KeepsLambda, "check_pickle"),
        (ForgetsProgress, "check_state_round_trip"),
        (TakesAnything, "check_bad_config"),
        (FixesDtype, "check_dtypes"),
        (CountsEpochs, "check_repeated_updates"),
        (WatchesForGood, "check_activation_collectors"),
    ],
)
def test_bad_pruner_is_caught(cls, check):
    others = [x.__name__ for x in pruner_checks() if x.__name__ != check]
    with pytest.raises(ConformanceError, match=check) as caught:
        check_pruner(cls, skip=others)
    assert list(caught.value.failures) == [check]
    assert caught.value.__cause__ is caught.value.failures[check]


def test_a_pruner_may_say_what_it_does_not_promise():
    CHECKS["check_exact_sparsity"](Subject(type("", (OffByOne,), {"exact_sparsity": False})))
    own = next(c for c in pruner_checks() if c.__name__ == "check_pruned_weights_stay_zero")
    own(Subject(type("", (Reopens,), {"regrows": True})))


# -- bad quantizers -------------------------------------------------------------------------------


class Detaches(Rounds):
    quant_grad = None

    def quantize_weight(self, weight, config, **kwargs):
        return self._round(weight.detach(), config)


class RoundsWithoutGradient(Rounds):
    """Differentiates through ``round``, which has a gradient of zero."""

    quant_grad = None

    def quantize_weight(self, weight, config, **kwargs):
        return (weight * 64).round() / 64


class WrongGradient(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return grad_output / 0


class DividesByZero(Rounds):
    quant_grad = WrongGradient


class IgnoresRule(Rounds):
    """Differentiates by straight-through, whatever ``quant_grad`` says."""

    def run(self, wrapper, quant_type, tensors):
        self._gradient = QuantGrad
        return super().run(wrapper, quant_type, tensors)


class UsesItem(Rounds):
    def quantize_weight(self, weight, config, **kwargs):
        scale = weight.abs().max().item()
        return (weight / scale * 127).round() * (scale / 127) if scale > 0 else weight


class OneLevelTooMany(Rounds):
    def quantize_weight(self, weight, config, **kwargs):
        half = 2 ** (config["quant_bits"] - 1)
        scale = weight.abs().max() / half
        return (weight / scale).round() * scale


class EditsInPlace(Rounds):
    def quantize_weight(self, weight, config, **kwargs):
        return weight.mul_(8).round_().div_(8)


class SeesOtherWeight(Rounds):
    """Gives another answer each time, so no plain model equals it."""

    def quantize_weight(self, weight, config, **kwargs):
        vars(self)["calls"] = vars(self).get("calls", 0) + 1
        return self._round(weight, config) * self.calls


class ClaimsToKeepZero(Offset):
    keeps_zero = True


class StaleWeight(Rounds):
    """Quantizes once and returns that result ever after."""

    def quantize_weight(self, weight, wrapper, **kwargs):
        known = vars(self).setdefault("known", {})
        return known.setdefault(wrapper.name, self._round(weight, wrapper.config).clone())


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (Detaches, "check_gradient_reaches_weights"),
        (RoundsWithoutGradient, "check_gradient_reaches_weights"),
        (DividesByZero, "check_gradient_reaches_weights"),
        (IgnoresRule, "check_own_gradient_is_used"),
        (UsesItem, "check_compile"),
        (OneLevelTooMany, "check_levels"),
        (EditsInPlace, "check_forward_leaves_float_weights_alone"),
        (SeesOtherWeight, "check_models_compute_with_compressed_weights"),
        (ClaimsToKeepZero, "check_pruned_weights_stay_zero"),
        (StaleWeight, "check_quantized_weights_follow"),
    ],
)
def test_bad_quantizer_is_caught(cls, check):
    others = [x.__name__ for x in quantizer_checks() if x.__name__ != check]
    with pytest.raises(ConformanceError, match=check) as caught:
        check_quantizer(cls, skip=others)
    assert list(caught.value.failures) == [check]


# -- the report -----------------------------------------------------------------------------------


def test_all_failures_are_reported_at_once():
    class Awful(OffByOne, KeepsLambda):
        def calc_mask(self, wrapper, wrapper_idx=None):
            KeepsLambda.calc_mask(self, wrapper)
            return OffByOne.calc_mask(self, wrapper)

    with pytest.raises(AssertionError) as caught:
        check_pruner(Awful, skip=SLOW)
    error = caught.value
    assert isinstance(error, LilliputError)
    assert {"check_exact_sparsity", "check_pickle"} <= set(error.failures)
    assert len(str(error).splitlines()) == len(error.failures) + 1
    assert "layer 'conv1' has 21 zeros of 216, expected 22" in str(error)
    assert error.__cause__ is next(iter(error.failures.values()))


def test_skip_of_an_unknown_check_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'check_pickle'"):
        check_pruner(Plain, skip=["pickl"])


def test_a_class_that_fits_no_model_is_not_passed_in_silence():
    with pytest.raises(ConformanceError, match="no test model has any"):
        check_pruner(Plain, {"op_types": ["Conv3d"], "sparsity": 0.5}, skip=SLOW)


def test_checks_leave_the_random_state_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    CHECKS["check_determinism"](Subject(Plain))
    assert torch.equal(torch.rand(3), expected)


def test_default_settings_follow_the_rule():
    class Bare(Pruner):
        rule = type("BareRule", (PruneRule,), {})

    assert Subject(Bare).settings == {"sparsity": 0.5}
    assert Subject(AGPPruner).sparsity_key == "final_sparsity"
    assert Subject(Rounds).settings == {"quant_bits": 8}
    assert issubclass(Rounds.rule, QuantRule)


def test_every_check_has_a_name_of_its_own_and_says_what_it_promises():
    for checks in (pruner_checks(), quantizer_checks()):
        names = [check.__name__ for check in checks]
        assert len(set(names)) == len(names)
        assert all(check.__doc__ for check in checks)


@pytest.mark.parametrize("kind", SPECIMENS.values())
def test_models_repeat_their_input_in_their_own_dtype(kind):
    model = kind()
    assert isinstance(model, Specimen)
    assert torch.equal(model.make_input(), model.make_input())
    model(model.make_input(batch=2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    if kind is TinyCNN:
        assert model.double().make_input().dtype == torch.float64


def test_a_class_of_the_other_kind_is_refused_at_once():
    with pytest.raises(AlgorithmError, match="check_pruner received NaiveQuantizer"):
        check_pruner(NaiveQuantizer)
    with pytest.raises(AlgorithmError, match="check_quantizer received LevelPruner"):
        check_quantizer(LevelPruner)


def test_checks_that_fail_for_one_reason_share_a_line():
    from lilliput.testing.expect import Report

    same, other = ValueError("wrong shape"), ValueError("NaN")
    report = Report("Mine", {"a": 0.1, "b": 0.1, "c": 0.1}, {"a": same, "b": same, "c": other})
    assert str(report).splitlines() == [
        "Mine fails 3 of 3 checks:",
        "  - a, b: ValueError: wrong shape",
        "  - c: ValueError: NaN",
    ]
