"""Make trained neural networks smaller and faster.

Importing this module is instant: the names below are loaded when they are first used, and neither
torch nor keras is imported before a model of theirs comes along. Users of one framework import from
its façade instead: ``from lilliput.torch import LevelPruner``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "lilliput.config.layer": ("LayerInfo", "QuantType"),
    "lilliput.config.spec": ("BitsRule", "PruneRule", "QuantRule", "Rule", "ScheduledPruneRule"),
    "lilliput.config.files": ("read_rules", "write_rules"),
    "lilliput.core.compressor": ("Compressor",),
    "lilliput.core.grad": ("QuantGrad",),
    "lilliput.core.masker": ("WeightMasker",),
    "lilliput.core.pruner": ("Pruner",),
    "lilliput.core.quantizer": ("Quantizer",),
    "lilliput.core.state": ("CompressionState",),
    "lilliput.distillation": ("Distiller",),
    "lilliput.errors": (
        "AlgorithmError",
        "ConfigError",
        "ExportError",
        "LilliputError",
        "MissingExtraError",
        "StageError",
        "StateError",
        "UnsupportedModelError",
        "WriteError",
    ),
    "lilliput.pruning": (
        "AGPPruner",
        "ActivationAPoZRankPruner",
        "ActivationMeanRankPruner",
        "ChannelMasker",
        "ChannelPruner",
        "FPGMPruner",
        "L1NormPruner",
        "L2NormPruner",
        "LeastSquaresPruner",
        "LevelPruner",
        "LinearPruner",
        "OneShotPruner",
        "ScoreMasker",
        "SensitivityAnalysis",
        "SensitivityPruner",
        "SlimPruner",
        "TaylorFOWeightPruner",
    ),
    "lilliput.quantization": (
        "BNNQuantizer",
        "DoReFaQuantizer",
        "LSQPlusQuantizer",
        "LSQQuantizer",
        "NaiveQuantizer",
        "PTQQuantizer",
        "QATQuantizer",
        "RangeQuantizer",
    ),
    "lilliput.algorithms": (
        "config_schema",
        "list_pruners",
        "list_quantizers",
        "pruner",
        "quantizer",
    ),
    "lilliput.registry": ("register_pruner", "register_quantizer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        if name[:1].isupper():  # else a submodule, or what tools ask every module for
            raise import_module("lilliput.algorithms").no_such_name("lilliput", name)
        raise AttributeError(f"module 'lilliput' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
