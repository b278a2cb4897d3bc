"""Everything a PyTorch user imports: ``from lilliput.torch import LevelPruner``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lilliput import _HOMES
from lilliput.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":  # something else is missing, or broken, inside torch
        raise
    raise MissingExtraError(
        "lilliput.torch needs PyTorch: pip install 'lilliput[torch]'"
    ) from error

from lilliput.backends.torch.backend import strip
from lilliput.backends.torch.wrapper import (
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
    from lilliput.export import ExportResult, export_executorch, export_onnx, export_openvino
    from lilliput.export.targets.executed import open_file
    from lilliput.pruning import (
        ActivationAPoZRankPruner,
        ActivationMeanRankPruner,
        AGPPruner,
        ChannelMasker,
        ChannelPruner,
        FPGMPruner,
        L1NormPruner,
        L2NormPruner,
        LeastSquaresPruner,
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
    from lilliput.recovery.recalibrate import recalibrate
    from lilliput.recovery.reconstruct import Reconstruction, reconstruct
    from lilliput.report.build import build_report
    from lilliput.report.document import Report
    from lilliput.report.measure import measure, measure_all
    from lilliput.report.quantization import QuantizationReport, quantization_report
    from lilliput.report.receipt import Figures, Receipt, take_receipt
    from lilliput.report.snapshot import snapshot
    from lilliput.speedup.collect import channel_groups
    from lilliput.speedup.groups import ChannelGroups
    from lilliput.speedup.model_speedup import ModelSpeedup
    from lilliput.speedup.preflight import preflight
    from lilliput.speedup.result import SpeedupResult
    from lilliput.speedup.saved import load
    from lilliput.speedup.shrink import speedup

# Loaded when they are first used: importing is to be quick.
_LAZY = {
    "lilliput.export": ("ExportResult", "export_executorch", "export_onnx", "export_openvino"),
    "lilliput.pruning": _HOMES["lilliput.pruning"],
    "lilliput.quantization": _HOMES["lilliput.quantization"],
    "lilliput.recovery.recalibrate": ("recalibrate",),
    "lilliput.recovery.reconstruct": ("Reconstruction", "reconstruct"),
    "lilliput.report.build": ("build_report",),
    "lilliput.report.document": ("Report",),
    "lilliput.export.targets.executed": ("open_file",),
    "lilliput.report.measure": ("measure", "measure_all"),
    "lilliput.report.quantization": ("QuantizationReport", "quantization_report"),
    "lilliput.report.receipt": ("Figures", "Receipt", "take_receipt"),
    "lilliput.report.snapshot": ("snapshot",),
    "lilliput.speedup.collect": ("channel_groups",),
    "lilliput.speedup.groups": ("ChannelGroups",),
    "lilliput.speedup.model_speedup": ("ModelSpeedup",),
    "lilliput.speedup.preflight": ("preflight",),
    "lilliput.speedup.result": ("SpeedupResult",),
    "lilliput.speedup.saved": ("load",),
    "lilliput.speedup.shrink": ("speedup",),
}

__all__ = [
    "AGPPruner",
    "ActivationAPoZRankPruner",
    "ActivationMeanRankPruner",
    "BNNQuantizer",
    "ChannelGroups",
    "ChannelMasker",
    "ChannelPruner",
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
    "LeastSquaresPruner",
    "LevelPruner",
    "LinearPruner",
    "ModelSpeedup",
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
    "Reconstruction",
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
    "export_executorch",
    "export_onnx",
    "export_openvino",
    "load",
    "measure",
    "measure_all",
    "open_file",
    "preflight",
    "quantization_report",
    "recalibrate",
    "reconstruct",
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
