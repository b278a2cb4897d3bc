"""NNI's internal classes: they can be imported, and on use show the same idea as a small class here.

Its pruners were assembled from collectors, calculators, allocators, generators and target spaces. Here
an algorithm is one class, so these could not be plugged in anywhere.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from lilliput.compat.nni.imports.tables import NAMES
from lilliput.errors import StageError

# The purpose of a part, and a current class that does the same; each is run by a test.
IDEAS = {
    "data collectors": (
        "what a pruner looks at while the model runs",
        """
from lilliput.torch import ChannelMasker, ChannelPruner

class LoudMasker(ChannelMasker):
    def start(self):
        self.pruner.set_wrappers_attribute("seen", 0.0)
        self.watching = self.pruner.add_activation_collector(self.look)

    def look(self, wrapper, inputs, output):
        wrapper.seen = wrapper.seen + output.detach().abs().mean((0, *range(2, output.dim())))

    def is_ready(self):
        return all(hasattr(w.seen, "shape") for w in self.pruner.get_modules_wrapper())

    def score(self, wrapper):
        return wrapper.seen

class LoudPruner(ChannelPruner):
    masker_type = LoudMasker
""",
    ),
    "metrics calculators": (
        "how important weights or channels are",
        """
from lilliput.torch import ChannelMasker, ChannelPruner

class LargestMasker(ChannelMasker):
    def score(self, wrapper):
        return wrapper.weight.detach().abs().flatten(1).amax(1)

class LargestPruner(ChannelPruner):
    masker_type = LargestMasker
""",
    ),
    "sparsity allocators": (
        "which weights go for a sparsity",
        """
from lilliput.torch import OneShotPruner, WeightMasker

class EveryRowMasker(WeightMasker):
    def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
        score = wrapper.weight.detach().abs()
        count = round(score.shape[1] * sparsity)
        smallest = score.argsort(1)[:, :count]
        return {"weight_mask": score.new_ones(score.shape).scatter(1, smallest, 0.0)}

class EveryRowPruner(OneShotPruner):
    masker_type = EveryRowMasker
""",
    ),
    "schedulers": (
        "how much is pruned when",
        """
from lilliput.torch import AGPPruner

class HalvingPruner(AGPPruner):
    @staticmethod
    def schedule(epoch, initial, final, start, end, frequency):
        return final if epoch >= end else final * (1 - 0.5 ** max(epoch - start, 0))
""",
    ),
    "target spaces": (
        "what a rule says of a layer, and where its masks are kept",
        '''
from lilliput.torch import Pruner

class ThresholdPruner(Pruner):
    def validate_config(self, model, config_list):
        """Overridden, so that rules may have keys of their own."""

    def calc_mask(self, wrapper):
        return {"weight_mask": (wrapper.weight.abs() > wrapper.config["threshold"]).float()}
''',
    ),
}


def message(name: str) -> str:
    """Return why a name of NNI cannot be used, and what to use instead."""
    part = next(part for part in IDEAS if name in NAMES[part])
    purpose, code = IDEAS[part]
    return (
        f"{name} is a part of the inside of NNI ({part}: {purpose}), which is not imitated. The same idea "
        f"is one small class here:\n{code}"
    )


class Refused:
    """Base class of NNI's internal classes; it can be neither instantiated nor subclassed.

    ``not_here`` is used by :mod:`lilliput.compat.nni.reading.check`.
    """

    not_here: ClassVar[str] = ""  # message of the check of a program

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise, with what to use instead."""
        raise StageError(message(cls.__name__))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if Refused not in cls.__bases__:
            raise StageError(message(cls.__mro__[1].__name__))

    @classmethod
    def from_compressor(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise, with what to use instead."""
        raise StageError(message(cls.__name__))


def __getattr__(name: str) -> Any:
    if not any(name in NAMES[part] for part in IDEAS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = message(name)
    members = {"__module__": __name__, "__doc__": text, "not_here": text.partition(":\n")[0]}
    found = type(name, (Refused,), members)
    globals()[name] = found
    return found
