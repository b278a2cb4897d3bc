"""Everything a Keras user imports: ``from lilliput.keras import LevelPruner``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lilliput import _HOMES
from lilliput.errors import MissingExtraError

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("keras", "tensorflow", "jax", "torch"):  # something inside them
        raise
    raise MissingExtraError(
        "lilliput.keras needs Keras 3 and one of its backends: pip install 'lilliput[keras]' tensorflow"
    ) from error

from lilliput.backends.keras.backend import strip
from lilliput.backends.keras.model import CompressionCallback
from lilliput.backends.keras.wrapper import (
    ModuleWrapper,
    PrunerModuleWrapper,
    QuantizerModuleWrapper,
)
from lilliput.config.layer import LayerInfo, QuantType
from lilliput.core.compressor import Compressor
from lilliput.core.grad import QuantGrad
from lilliput.core.masker import WeightMasker
from lilliput.core.pruner import Pruner
from lilliput.core.quantizer import Quantizer
from lilliput.core.state import CompressionState
from lilliput.ops.qparams import Grid, QParams

if TYPE_CHECKING:
    from lilliput.export.keras import ExportResult, export_litert, export_onnx, litert_latency
    from lilliput.pruning import (
        ActivationAPoZRankPruner,
        ActivationMeanRankPruner,
        AGPPruner,
        ChannelMasker,
        ChannelPruner,
        FPGMPruner,
        L1NormPruner,
        L2NormPruner,
        LevelPruner,
        LinearPruner,
        OneShotPruner,
        ScoreMasker,
        SensitivityAnalysis,
        SensitivityPruner,
        SlimPruner,
        TaylorFOWeightPruner,
    )
    from lilliput.quantization import (
        BNNQuantizer,
        DoReFaQuantizer,
        LSQPlusQuantizer,
        LSQQuantizer,
        NaiveQuantizer,
        PTQQuantizer,
        QATQuantizer,
        RangeQuantizer,
    )
    from lilliput.report.build import build_report
    from lilliput.report.document import Report
    from lilliput.report.executed import open_file
    from lilliput.report.measure import measure, measure_all
    from lilliput.report.quantization import QuantizationReport, quantization_report
    from lilliput.report.receipt import Figures, Receipt, take_receipt
    from lilliput.report.snapshot import snapshot
    from lilliput.speedup.groups import ChannelGroups
    from lilliput.speedup.keras.collect import channel_groups
    from lilliput.speedup.keras.result import SpeedupResult
    from lilliput.speedup.keras.shrink import speedup

# Loaded when they are first used: importing is to be quick. Those that need torch say so when used.
_LAZY = {
    "lilliput.export.keras": ("ExportResult", "export_litert", "export_onnx", "litert_latency"),
    "lilliput.pruning": _HOMES["lilliput.pruning"],
    "lilliput.quantization": _HOMES["lilliput.quantization"],
    "lilliput.report.build": ("build_report",),
    "lilliput.report.document": ("Report",),
    "lilliput.report.executed": ("open_file",),
    "lilliput.report.measure": ("measure", "measure_all"),
    "lilliput.report.quantization": ("QuantizationReport", "quantization_report"),
    "lilliput.report.receipt": ("Figures", "Receipt", "take_receipt"),
    "lilliput.report.snapshot": ("snapshot",),
    "lilliput.speedup.groups": ("ChannelGroups",),
    "lilliput.speedup.keras.collect": ("channel_groups",),
    "lilliput.speedup.keras.result": ("SpeedupResult",),
    "lilliput.speedup.keras.shrink": ("speedup",),
}

__all__ = [
    "AGPPruner",
    "ActivationAPoZRankPruner",
    "ActivationMeanRankPruner",
    "BNNQuantizer",
    "ChannelGroups",
    "ChannelMasker",
    "ChannelPruner",
    "CompressionCallback",
    "CompressionState",
    "Compressor",
    "DoReFaQuantizer",
    "ExportResult",
    "FPGMPruner",
    "Figures",
    "Grid",
    "L1NormPruner",
    "L2NormPruner",
    "LSQPlusQuantizer",
    "LSQQuantizer",
    "LayerInfo",
    "LevelPruner",
    "LinearPruner",
    "ModuleWrapper",
    "NaiveQuantizer",
    "OneShotPruner",
    "PTQQuantizer",
    "Pruner",
    "PrunerModuleWrapper",
    "QATQuantizer",
    "QParams",
    "QuantGrad",
    "QuantType",
    "QuantizationReport",
    "Quantizer",
    "QuantizerModuleWrapper",
    "RangeQuantizer",
    "Receipt",
    "Report",
    "ScoreMasker",
    "SensitivityAnalysis",
    "SensitivityPruner",
    "SlimPruner",
    "SpeedupResult",
    "TaylorFOWeightPruner",
    "WeightMasker",
    "build_report",
    "channel_groups",
    "export_litert",
    "export_onnx",
    "litert_latency",
    "measure",
    "measure_all",
    "open_file",
    "quantization_report",
    "snapshot",
    "speedup",
    "strip",
    "take_receipt",
]


def __getattr__(name: str) -> Any:
    for home, names in _LAZY.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise import_module("lilliput.algorithms").no_such_name(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
