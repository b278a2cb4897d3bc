from types import SimpleNamespace

import pytest

from lilliput.core.hooks import plan_call
from lilliput.errors import AlgorithmError

WRAPPER = SimpleNamespace(
    config={"bits": 8}, layer_info="info", module="module", type="Linear", name="fc"
)


def calls():
    """Every generation of signatures, with what it must be handed."""

    def weight_config(weight, config, **kwargs):
        return weight, config, kwargs

    def weight_wrapper(weight, wrapper, **kwargs):
        return weight, wrapper, kwargs

    def info_weight(layer_info, weight):
        return layer_info, weight

    def only_wrapper(wrapper, **kwargs):
        return wrapper, kwargs

    def v1_1(weight, config, op, op_type, op_name):
        return weight, config, op, op_type, op_name

    def v1_2(layer, config):
        return layer, config

    def calc_mask(wrapper, wrapper_idx=None):
        return wrapper, wrapper_idx

    def star_config(*inputs, config, **kwargs):
        return inputs, config, kwargs

    def star_wrapper(*inputs, wrapper, **kwargs):
        return inputs, wrapper, kwargs

    def other_name(output, wrapper, scale=3):
        return output, wrapper, scale

    config = WRAPPER.config
    return [
        (weight_config, ("w", config, {})),
        (weight_wrapper, ("w", WRAPPER, {})),
        (info_weight, ("info", "w")),
        (only_wrapper, (WRAPPER, {})),
        (v1_1, ("w", config, "module", "Linear", "fc")),
        (v1_2, ("info", config)),
        (calc_mask, (WRAPPER, 7)),
        (star_config, (("w",), config, {})),
        (star_wrapper, (("w",), WRAPPER, {})),
        (other_name, ("w", WRAPPER, 3)),
    ]


@pytest.mark.parametrize(("method", "expected"), calls(), ids=lambda x: getattr(x, "__name__", ""))
def test_every_documented_signature_is_called_as_documented(method, expected):
    assert plan_call(method)(WRAPPER, "w", index=7) == expected


def test_star_inputs_get_all_tensors():
    def quantize_input(*inputs, config, **kwargs):
        return inputs

    assert plan_call(quantize_input)(WRAPPER, "a", "b") == ("a", "b")


def test_the_tensor_is_not_asked_for_when_the_method_does_not_take_it():
    assert not plan_call(lambda wrapper, wrapper_idx=None: None).wants_tensor
    assert plan_call(lambda layer_info, weight: None).wants_tensor


def test_a_parameter_that_nobody_can_fill_is_refused_by_name():
    def quantize_weight(weight, temperature):
        return weight

    with pytest.raises(AlgorithmError, match="quantize_weight has a parameter 'temperature'"):
        plan_call(quantize_weight)
