"""The joint check finds what breaks only where a pruner, a quantizer and a distiller meet."""

import pytest
import torch

from lilliput.distillation import distiller
from lilliput.errors import ConfigError
from lilliput.ops.qparams import QParams
from lilliput.testing import ConformanceError, Subject, check_together
from lilliput.torch import LevelPruner, NaiveQuantizer, QuantGrad, Quantizer


class WrongScale(NaiveQuantizer):
    """Says another grid than the one that it rounds to, as a file would have it."""

    def qparams(self, wrapper, quant_type):
        found = super().qparams(wrapper, quant_type)
        return QParams(found.scale * 1.1, found.zero_point, found.grid)


class TooManyValues(Quantizer):
    """Rounds to something, and knows no grid."""

    def quantize_weight(self, weight, config, **kwargs):
        return (weight * 64).round() / 64


class MovesZero(Quantizer):
    """Has no zero among its levels, and says that it has."""

    keeps_zero = True

    def quantize_weight(self, weight, config, **kwargs):
        return ((weight * 8).floor() + 0.5) / 8


class Nothing(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return grad_output * 0


class Stops(NaiveQuantizer):
    quant_grad = Nothing


class Returns(LevelPruner):
    """Lets go of its zeros at the end."""

    def strip(self):
        model = super().strip()
        for wrapper in self.get_modules_wrapper():
            with torch.no_grad():
                wrapper.weight.add_(0.1)
        return model


class Alone(NaiveQuantizer):
    """Refuses to work on a pruned model."""

    def bind_model(self, model):
        raise ConfigError("not beside a pruner.")


LEVEL, NAIVE = Subject(LevelPruner), Subject(NaiveQuantizer)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (LEVEL, Subject(WrongScale), "is off its grid by"),
        (LEVEL, Subject(TooManyValues), "values, at most 16 fit 4 bits"),
        (LEVEL, Subject(MovesZero), "masked weights of .* are not zero"),
        (LEVEL, Subject(Stops), "has a gradient of zeros only"),
        (Subject(Returns), NAIVE, "after strip.. of the pruner, outputs: they differ"),
        (Subject(LevelPruner, {"sparsity": 0.0}), NAIVE, "nothing is pruned"),
    ],
)
def test_what_breaks_is_found(first, second, text):
    with pytest.raises(ConformanceError, match=text):
        check_together(first, second)


def test_a_wrong_distance_is_found(monkeypatch):
    wrong = distiller.kl_divergence
    monkeypatch.setattr(distiller, "kl_divergence", lambda *args: 1.1 * wrong(*args))
    with pytest.raises(ConformanceError, match=r"the distance at '\(model\)': they differ"):
        check_together(LEVEL, NAIVE)


def test_a_refusal_is_returned_and_the_model_is_plain():
    assert check_together(LEVEL, Subject(Alone)) == "not beside a pruner."
