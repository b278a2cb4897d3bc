"""The battery finds what is wrong with a bad algorithm for Keras, and nothing wrong with a good one."""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.frameworks.keras import lab as keras_lab
from lilliput.frameworks.keras.lab import gradients
from lilliput.frameworks.keras.lab_models import SPECIMENS, specimen_of
from lilliput.keras import LevelPruner, NaiveQuantizer, Pruner, QuantGrad, Quantizer
from lilliput.testing.battery import SHARED_CHECKS
from lilliput.testing.keras import (
    ConformanceError,
    Subject,
    TinyCNN,
    TinyMLP,
    check_pruner,
    check_quantizer,
    make_input,
    pruner_checks,
    quantizer_checks,
)

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def array(tensor):
    return np.array(ops.convert_to_numpy(ops.stop_gradient(ops.convert_to_tensor(tensor))))


def smallest(weight, count):
    values = np.abs(array(weight))
    mask = np.ones(values.size, "float32")
    mask[values.reshape(-1).argsort(kind="stable")[:count]] = 0
    return mask.reshape(values.shape)


def wanted(wrapper):
    return round(array(wrapper.weight).size * wrapper.config["sparsity"])


# -- good ones ------------------------------------------------------------------------------------


class Plain(Pruner):
    """Recompute the mask each time, from the weights alone."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        return {"weight_mask": smallest(wrapper.weight, wanted(wrapper))}


class Old2019(Pruner):
    """The 2019 form: a constructor of its own, weight and layer as arguments, tensors of Keras."""

    def __init__(self, configure_list):
        self.configure_list = configure_list

    def calc_mask(self, layer_info, weight):
        count = round(array(weight).size * layer_info.config["sparsity"])
        return ops.convert_to_tensor(smallest(weight, count))


def make_2019(model, config_list, optimizer):
    pruner = Old2019(config_list)
    pruner.config_list = config_list
    return pruner


class WithBias(Plain):
    """Masks biases too."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        masks = super().calc_mask(wrapper)
        if wrapper.bias is not None:
            masks["bias_mask"] = smallest(wrapper.bias, array(wrapper.bias).size // 3)
        return masks


class Rounds(Quantizer):
    """Weights, inputs and outputs to an even grid around zero."""

    def _round(self, tensor, config):
        half = 2 ** (config["quant_bits"] - 1) - 1
        step = ops.maximum(ops.max(ops.abs(tensor)), 1e-6) / half
        return ops.round(tensor / step) * step

    def quantize_weight(self, weight, config, **kwargs):
        return self._round(weight, config)

    def quantize_input(self, *inputs, config, **kwargs):
        return tuple(self._round(x, config) for x in inputs)

    def quantize_output(self, output, config, **kwargs):
        return self._round(output, config)


class OwnGradient(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return grad_output * ops.cast(ops.abs(tensor) <= 1, grad_output.dtype)


class RoundsWithOwnGradient(Rounds):
    quant_grad = OwnGradient


class Offset(Quantizer):
    """An even number of levels, none of them zero."""

    def quantize_weight(self, weight, config, **kwargs):
        half = 2 ** config["quant_bits"] / 2
        return (ops.clip(ops.floor(weight * half), -half, half - 1) + 0.5) / half


# What is due to the algorithm itself, of what does not take long.
QUICK = {
    *("masks", "exact_sparsity", "failing_calc_mask_leaves_model_alone", "pruning_again"),
    *("compress_works_after_a_failure", "determinism", "bad_config", "repeated_updates"),
    *(
        "straight_through_gradient",
        "own_gradient_is_used",
        "quantized_weights_follow",
        "activations",
    ),
    *("own_loops", "compressing_again_changes_nothing"),
}


@pytest.mark.slow
def test_a_correct_pruner_passes():
    skip = [x.__name__ for x in pruner_checks() if x.__name__.removeprefix("check_") not in QUICK]
    report = check_pruner(WithBias, skip=skip)
    assert [*report.seconds] == [x.__name__ for x in pruner_checks() if x.__name__ not in skip]
    assert str(report) == f"WithBias passes {len(report.seconds)} checks ({len(skip)} skipped)."


def test_a_correct_quantizer_passes():
    checks = [x.__name__ for x in quantizer_checks()]
    check_quantizer(Rounds, skip=[x for x in checks if x.removeprefix("check_") not in QUICK])


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "make"), [(Plain, None), (Old2019, make_2019), (WithBias, None)])
def test_correct_pruners_pass_everything(cls, make):
    assert len(check_pruner(cls, make=make).seconds) == len(pruner_checks())


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Rounds, RoundsWithOwnGradient, Offset])
def test_correct_quantizers_pass_everything(cls):
    assert len(check_quantizer(cls).seconds) == len(quantizer_checks())


# -- bad pruners ----------------------------------------------------------------------------------


class WrongShape(Pruner):
    def calc_mask(self, wrapper, wrapper_idx=None):
        return array(wrapper.weight).reshape(-1) > 0


class OffByOne(Plain):
    def calc_mask(self, wrapper, wrapper_idx=None):
        return smallest(wrapper.weight, max(wanted(wrapper) - 1, 0))


class Unrepeatable(Plain):
    calls = itertools.count()

    def calc_mask(self, wrapper, wrapper_idx=None):
        mask = np.ones(array(wrapper.weight).size, "float32")
        mask[: wanted(wrapper)] = 0
        return np.roll(mask, next(self.calls)).reshape(array(wrapper.weight).shape)


class Reopens(Plain):
    """Prunes one end of the weight at first, and nothing ever after."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        is_first = not hasattr(wrapper, "was_here")
        wrapper.was_here = True
        mask = np.ones(array(wrapper.weight).size, "float32")
        mask[: wanted(wrapper) if is_first else 0] = 0
        return mask.reshape(array(wrapper.weight).shape)


class EditsWeights(Plain):
    """Writes into the raw weight at once, instead of returning a mask and leaving it to the engine."""

    def calc_mask(self, wrapper, wrapper_idx=None):
        mask = smallest(wrapper.weight, wanted(wrapper))
        layer, name = wrapper.module, wrapper.layer_info.weight_name
        held = vars(layer).get(f"_{name}", vars(layer).get(name))
        held.assign(array(held) * mask)
        return mask


class LeavesAttribute(Plain):
    def bind_model(self, model):
        vars(model.layers[-1])["my_notes"] = "left behind"


class AddsWeight(Plain):
    def bind_model(self, model):
        layer = model.layers[-1]
        layer._tracker.unlock()
        layer.add_weight(shape=(1,), name="surplus", trainable=False)
        layer._tracker.lock()


class ForgetsProgress(Plain):
    """Keeps its counter where ``state()`` does not look."""

    steps = 0

    def step(self):
        self.steps += 1

    def calc_mask(self, wrapper, wrapper_idx=None):
        count = wanted(wrapper) + (5 if self.steps > 2 else 0)
        return smallest(wrapper.weight, min(count, array(wrapper.weight).size))


class TakesAnything(Plain):
    def __init__(self, model=None, config_list=None, optimizer=None):
        try:
            super().__init__(model, config_list, optimizer)
        except ConfigError:
            super().__init__(model, [{"sparsity": 0.5}], optimizer)


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
        (Unrepeatable, "check_determinism"),
        (Reopens, "check_pruned_weights_stay_zero"),
        (Reopens, "check_train_on_batch_keeps_zeros"),
        (EditsWeights, "check_failing_calc_mask_leaves_model_alone"),
        (LeavesAttribute, "check_strip_restores_model"),
        (AddsWeight, "check_strip_restores_model"),
        (ForgetsProgress, "check_state_round_trip"),
        (TakesAnything, "check_bad_config"),
        (CountsEpochs, "check_repeated_updates"),
    ],
)
def test_bad_pruner_is_caught(cls, check):
    with pytest.raises(ConformanceError, match=check) as caught:
        check_pruner(cls, skip=[x.__name__ for x in pruner_checks() if x.__name__ != check])
    assert list(caught.value.failures) == [check]
    assert caught.value.__cause__ is caught.value.failures[check]


def test_a_pruner_may_say_what_it_does_not_promise():
    checks = {check.__name__: check for check in pruner_checks()}
    checks["check_exact_sparsity"](Subject(type("", (OffByOne,), {"exact_sparsity": False})))
    checks["check_pruned_weights_stay_zero"](Subject(type("", (Reopens,), {"regrows": True})))


# -- bad quantizers -------------------------------------------------------------------------------


class Detaches(Rounds):
    quant_grad = None

    def quantize_weight(self, weight, config, **kwargs):
        return self._round(ops.stop_gradient(weight), config)


class IgnoresRule(Rounds):
    """Differentiates through ``round``, whatever ``quant_grad`` says."""

    def quantize_weight(self, weight, config, **kwargs):
        return self._round(weight, config)

    def run(self, wrapper, quant_type, tensors):
        self._gradient = None
        return super().run(wrapper, quant_type, tensors)


class OneLevelTooMany(Rounds):
    def quantize_weight(self, weight, config, **kwargs):
        half = 2 ** (config["quant_bits"] - 1)
        scale = ops.max(ops.abs(weight)) / half
        return ops.round(weight / scale) * scale


class ClaimsToKeepZero(Offset):
    keeps_zero = True


class StaleWeight(Rounds):
    """Quantizes once and returns that result ever after."""

    def quantize_weight(self, weight, wrapper, **kwargs):
        known = vars(self).setdefault("known", {})
        if wrapper.name not in known:
            known[wrapper.name] = array(self._round(weight, wrapper.config))
        return ops.convert_to_tensor(known[wrapper.name])


class ConstantInGraph(Rounds):
    """Computes the scale in Python, so that it is a constant in every graph."""

    def quantize_weight(self, weight, wrapper, **kwargs):
        step = float(np.abs(array(wrapper.weight)).max()) / 3
        return ops.round(weight / step) * step


class Infinite(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return grad_output * float("inf")


class DividesByZero(Rounds):
    quant_grad = Infinite


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (Detaches, "check_gradient_reaches_weights"),
        (IgnoresRule, "check_own_gradient_is_used"),
        (DividesByZero, "check_gradient_reaches_weights"),
        (OneLevelTooMany, "check_levels"),
        (ClaimsToKeepZero, "check_pruned_weights_stay_zero"),
        (StaleWeight, "check_quantized_weights_follow"),
        (ConstantInGraph, "check_compiled_functions_follow"),
    ],
)
def test_bad_quantizer_is_caught(cls, check):
    if cls is ConstantInGraph and keras.backend.backend() == "torch":
        pytest.skip("there are no graphs on torch")
    with pytest.raises(ConformanceError, match=check) as caught:
        check_quantizer(cls, skip=[x.__name__ for x in quantizer_checks() if x.__name__ != check])
    assert list(caught.value.failures) == [check]


# -- the report, the subjects and the models --------------------------------------------------------


def test_skip_of_an_unknown_check_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'check_jit_compile'"):
        check_pruner(Plain, skip=["jit_compil"])


def test_a_class_of_the_other_kind_is_refused_at_once():
    with pytest.raises(AlgorithmError, match="check_pruner received NaiveQuantizer"):
        check_pruner(NaiveQuantizer)
    with pytest.raises(AlgorithmError, match="check_quantizer received LevelPruner"):
        check_quantizer(LevelPruner)


def test_a_class_that_fits_no_model_is_not_passed_in_silence():
    with pytest.raises(ConfigError, match="no test model has any; .* such as Conv2D or Dense"):
        Subject(Plain, {"op_types": ["Conv3D"], "sparsity": 0.5}).model()


def test_a_subject_leaves_out_models_of_no_use():
    models = Subject(Plain, {"op_types": ["Conv2D"], "sparsity": 0.5}).models()
    assert [specimen_of(model) for model in models] == [TinyCNN]


def test_every_check_has_a_name_of_its_own_and_says_what_it_promises():
    for checks in (pruner_checks(), quantizer_checks()):
        names = [check.__name__ for check in checks]
        assert len(set(names)) == len(names)
        assert all(check.__doc__ for check in checks)


def test_the_checks_of_torch_are_the_same():
    shared = {check for checks in SHARED_CHECKS.values() for check in checks}
    assert shared <= {*pruner_checks(), *quantizer_checks()}
    assert len(shared) >= 30


def test_the_paths_of_weights_are_their_own():
    for kind in SPECIMENS.values():
        model = kind()
        assert len(keras_lab.weights(model)) == len(model.weights)


def test_the_quick_checks_are_there():
    known = {check.__name__ for check in [*pruner_checks(), *quantizer_checks()]}
    assert {f"check_{name}" for name in QUICK} <= known


def test_checks_leave_the_random_state_alone():
    np.random.seed(11)
    expected = np.random.rand(3)
    np.random.seed(11)
    next(c for c in pruner_checks() if c.__name__ == "check_pruning_again")(Subject(Plain))
    assert np.array_equal(np.random.rand(3), expected)


@pytest.mark.parametrize("kind", SPECIMENS.values(), ids=SPECIMENS)
def test_models_repeat_their_input_and_train_all_their_weights(kind):
    model = kind()
    assert np.array_equal(make_input(model), make_input(model))
    assert tuple(model(kind.make_input(batch=2)).shape) == (2, 5)
    found = gradients(model)
    assert len(found) == len(model.trainable_variables)
    assert all(gradient is not None for gradient in found.values())


def test_a_model_from_elsewhere_has_no_test_input():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="mine")
    with pytest.raises(ConfigError, match=re.escape("'mine', which is not one of the test models")):
        make_input(model)


def test_settings_follow_the_rule():
    assert Subject(LevelPruner).settings == {"sparsity": 0.5}
    assert TinyMLP.make_input(batch=2).shape == (2, 11)
