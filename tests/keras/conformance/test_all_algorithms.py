"""Every registered algorithm that is for Keras passes the battery; the others say so."""

import pytest

from lilliput.algorithms import list_pruners, list_quantizers, pruner, quantizer
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras import lab as keras_lab
from lilliput.frameworks.keras.lab_loops import squares
from lilliput.frameworks.keras.lab_models import make_batch
from lilliput.testing.keras import (
    Subject,
    TinyCNN,
    check_together,
    pruner_checks,
    quantizer_checks,
)
from lilliput.testing.observe import Anatomy

# What Keras does itself when it turns its variables into arrays, on JAX and torch.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

# Settings for algorithms whose defaults do not fit networks this small, by registered name.
SETTINGS: dict[str, dict[str, object]] = {"bnn": {"quant_types": ["weight"]}}


def calibrated(name, **options):
    """Return the class of a pruner that has seen a batch when it is made."""
    base = pruner(name)

    def __init__(self, model=None, *args, **kwargs):
        base.__init__(self, model, *args, **kwargs)
        if model is not None:
            self.calibrate([make_batch(model)[0]])

    def calibrate(self, batches):
        base.calibrate(self, batches, **options)

    members = {"__init__": __init__, "calibrate": calibrate, "__module__": base.__module__}
    return type(base.__name__, (base,), members)


def after_a_round():
    """Return the class of lottery tickets whose only round of training is over when it is made."""
    base = pruner("lottery_ticket")

    def __init__(self, model=None, config_list=None, *args, **kwargs):
        rules = [{"prune_iterations": 1, **r} if isinstance(r, dict) else r for r in config_list]
        base.__init__(self, model, rules, *args, **kwargs)
        self.update_epoch(1)

    return type(base.__name__, (base,), {"__init__": __init__, "__module__": base.__module__})


def given(name, **options):
    """Return the class of a pruner with arguments that have no default."""
    base = pruner(name)

    def __init__(self, *args, **kwargs):
        base.__init__(self, *args, **options, **kwargs)

    return type(base.__name__, (base,), {"__init__": __init__, "__module__": base.__module__})


def loss_of(model, inputs):
    return squares(model(inputs, training=False), 1.0)


# Those that prune after they have seen data or training, or need to be told something, by registered name.
MADE = {
    "apoz": calibrated("apoz"),
    "fisher": calibrated("fisher", loss=loss_of),
    "lottery_ticket": after_a_round(),
    "mean_activation": calibrated("mean_activation"),
    "movement": given("movement", cool_down_beginning_step=3),
    "taylorfo": calibrated("taylorfo", loss=loss_of),
}

# All checks of all algorithms take many minutes. This one stands for what the engine can be asked to do.
THOROUGH = {"level"}
# What is due to the engine, and does not depend on the algorithm.
ENGINE = {
    "check_activation_collectors",
    "check_attention",
    "check_compiled_functions_follow",
    "check_compiled_mixed_precision",
    "check_compressed_model_saves_plain_file",
    "check_evaluation_before_training",
    "check_fit_keeps_zeros",
    "check_float_weights_train",
    "check_functions_from_before_are_renewed",
    "check_jit_compile",
    "check_layers_know_of_training",
    "check_mixed_precision",
    "check_models_compute_with_compressed_weights",
    "check_own_loops",
    "check_own_parameters_are_trained",
    "check_plain_checkpoint_loads",
    "check_recurrent",
    "check_strip_keeps_outputs",
    "check_strip_leaves_float_weights",
    "check_strip_restores_model",
    "check_stripped_model_saves_plain_file",
    "check_train_on_batch_keeps_zeros",
    "check_training_is_followed",
}
# But channels have companions, which other pruners do not have, and ranges follow what is seen in training.
NEEDED_ALL_THE_SAME = {
    ("l1", "check_compressed_model_saves_plain_file"),
    ("l1", "check_attention"),
    ("l1", "check_models_compute_with_compressed_weights"),
    ("l1", "check_recurrent"),
    ("l1", "check_strip_keeps_outputs"),
    ("l1", "check_strip_restores_model"),
    ("naive", "check_compiled_functions_follow"),
    ("naive", "check_float_weights_train"),
    ("naive", "check_jit_compile"),
    ("naive", "check_attention"),
    ("naive", "check_models_compute_with_compressed_weights"),
    ("naive", "check_recurrent"),
    ("naive", "check_strip_restores_model"),
    ("lsq", "check_compressed_model_saves_plain_file"),
    ("lsq", "check_own_loops"),
    ("lsq", "check_strip_restores_model"),
    ("qat", "check_compiled_mixed_precision"),
    ("qat", "check_own_loops"),
    ("qat", "check_evaluation_before_training"),
    ("qat", "check_training_is_followed"),
}
# All but a line of each is that of another one.
SAME = {"l2", "fpgm", "lamp", "linear", "sensitivity", "mean_activation", "lsq_plus"}
SAME |= {"random", "random_channels"}
OWN = {
    "check_determinism",
    "check_exact_sparsity",
    "check_masks",
    "check_state_round_trip",
}


def is_slow(name, check):
    if name in SAME:
        return check not in OWN
    return check in ENGINE and name not in THOROUGH and (name, check) not in NEEDED_ALL_THE_SAME


def cases(names, find, checks):
    return [
        pytest.param(
            name,
            check,
            id=f"{name}-{check.__name__.removeprefix('check_')}",
            marks=[pytest.mark.slow] if is_slow(name, check.__name__) else [],
        )
        for name in names
        if "keras" in find(name).backends
        for check in checks
    ]


@pytest.mark.parametrize(("name", "check"), cases(list_pruners(), pruner, pruner_checks()))
def test_pruner_conforms(name, check):
    check(Subject(MADE.get(name) or pruner(name), SETTINGS.get(name)))


@pytest.mark.parametrize(("name", "check"), cases(list_quantizers(), quantizer, quantizer_checks()))
def test_quantizer_conforms(name, check):
    check(Subject(quantizer(name), SETTINGS.get(name)))


ALL = {
    name: find(name)
    for find, names in ((pruner, list_pruners()), (quantizer, list_quantizers()))
    for name in names
}


def test_most_algorithms_are_for_keras():
    """So that a mistake in the lists above does not go unnoticed."""
    assert {name for name, cls in ALL.items() if "keras" in cls.backends} >= {
        *("level", "agp", "linear", "sensitivity", "l1", "l2", "fpgm", "slim"),
        *("taylorfo", "fisher", "apoz", "mean_activation"),
        *("naive", "qat", "ptq", "dorefa", "bnn", "lsq", "lsq_plus"),
    }
    assert set(ALL) >= THOROUGH | SAME


@pytest.mark.parametrize("name", [name for name, cls in ALL.items() if "keras" not in cls.backends])
def test_an_algorithm_for_torch_says_so_and_leaves_the_model_alone(name):
    model = TinyCNN()
    anatomy = Anatomy(keras_lab, model)
    settings = Subject(ALL[name]).settings
    with pytest.raises(
        UnsupportedModelError, match="works on torch models, received a keras model"
    ):
        ALL[name](model, [settings]).compress()
    anatomy.expect_same("after it was refused")


# -- a pruner, a quantizer and a distiller on one model ------------------------------------------------

# As they are when they prune within two steps of training.
TOGETHER = {name: MADE.get(name) or cls for name, cls in ALL.items() if cls.kind == "pruner"}
TOGETHER = {name: cls for name, cls in TOGETHER.items() if "keras" in cls.backends}
TOGETHER |= {
    "soft agp": given("agp", soft=True, hard_epoch=2),
    "str": given("str", start=-3.0),  # thresholds of 0.05
}
QUANTIZERS = [name for name in list_quantizers() if "keras" in quantizer(name).backends]
OWN_PRUNERS = [name for name in TOGETHER if name not in SAME]


def subjects(first, second):
    return Subject(TOGETHER[first]), Subject(quantizer(second), SETTINGS.get(second))


@pytest.mark.parametrize(("number", "first"), list(enumerate(OWN_PRUNERS)))
def test_pruner_quantizer_and_distiller_work_together(number, first):
    """Each pruner once, with all quantizers in turn."""
    second = QUANTIZERS[number % len(QUANTIZERS)]
    kind = "cnn" if first == "slim" else "mlp"  # whose steps take half as long
    assert check_together(*subjects(first, second), kinds=[kind]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("second", QUANTIZERS)
@pytest.mark.parametrize("first", TOGETHER)
def test_all_of_them_work_together(first, second):
    assert check_together(*subjects(first, second)) == ""
