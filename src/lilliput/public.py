"""The public names: where each one is defined, and from which module users import it.

``lilliput``, ``lilliput.torch`` and ``lilliput.keras`` define nothing themselves: a name is loaded from its
home on first use, so that importing them is fast. Type checkers read the ``.pyi`` files next to
them, which ``python -m lilliput.stubs`` writes from this table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

TOP, TORCH, KERAS = "lilliput", "lilliput.torch", "lilliput.keras"
ALL, BOTH, NOT_KERAS = (TOP, TORCH, KERAS), (TORCH, KERAS), (TOP, TORCH)

# The modules that export the names, their home, and the names.
TABLE: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (ALL, "lilliput.config.layer", "LayerInfo QuantType"),
    ((TOP,), "lilliput.config.spec", "BitsRule PruneRule QuantRule Rule ScheduledPruneRule"),
    ((TOP,), "lilliput.config.files", "read_rules write_rules"),
    ((TOP,), "lilliput.errors", "AlgorithmError ConfigError ExportError LilliputError"),
    ((TOP,), "lilliput.errors", "MissingExtraError StageError StateError UnsupportedModelError"),
    ((TOP,), "lilliput.errors", "WriteError"),
    ((TOP,), "lilliput.algorithms", "config_schema list_pruners list_quantizers pruner quantizer"),
    ((TOP,), "lilliput.registry", "register_factorizer register_pruner register_quantizer"),
    # the frame
    (ALL, "lilliput.core.compressor", "Compressor"),
    (ALL, "lilliput.ops.grad", "QuantGrad"),
    (ALL, "lilliput.core.masker", "WeightMasker"),
    (ALL, "lilliput.core.pruner", "Pruner"),
    (ALL, "lilliput.core.quantizer", "Quantizer"),
    (ALL, "lilliput.core.state", "CompressionState"),
    (BOTH, "lilliput.ops.qparams", "Grid QParams"),
    ((TORCH,), "lilliput.frameworks.torch.backend", "strip"),
    ((TORCH,), "lilliput.frameworks.torch.wrapper", "ModuleWrapper PrunerModuleWrapper"),
    ((TORCH,), "lilliput.frameworks.torch.wrapper", "QuantizerModuleWrapper"),
    ((KERAS,), "lilliput.frameworks.keras.backend", "strip"),
    ((KERAS,), "lilliput.frameworks.keras.model", "CompressionCallback"),
    ((KERAS,), "lilliput.frameworks.keras.wrapper", "ModuleWrapper PrunerModuleWrapper"),
    ((KERAS,), "lilliput.frameworks.keras.wrapper", "QuantizerModuleWrapper"),
    # pruning
    (NOT_KERAS, "lilliput.pruning.admm", "ADMMPruner"),
    (ALL, "lilliput.pruning.agp", "AGPPruner"),
    (ALL, "lilliput.pruning.apoz", "ActivationAPoZRankPruner"),
    (ALL, "lilliput.pruning.channels", "ChannelMasker ChannelPruner"),
    (ALL, "lilliput.pruning.fisher", "FisherPruner"),
    (ALL, "lilliput.pruning.fpgm", "FPGMPruner"),
    (ALL, "lilliput.pruning.l1", "L1NormPruner"),
    (ALL, "lilliput.pruning.l2", "L2NormPruner"),
    (ALL, "lilliput.pruning.lamp", "LAMPPruner"),
    (NOT_KERAS, "lilliput.pruning.least_squares", "LeastSquaresPruner"),
    (ALL, "lilliput.pruning.level", "LevelPruner"),
    (ALL, "lilliput.pruning.linear", "LinearPruner"),
    (ALL, "lilliput.pruning.lottery", "LotteryTicketPruner"),
    (ALL, "lilliput.pruning.mean_activation", "ActivationMeanRankPruner"),
    (ALL, "lilliput.pruning.movement", "MovementPruner"),
    (ALL, "lilliput.pruning.one_shot", "OneShotPruner ScoreMasker"),
    (ALL, "lilliput.pruning.random_scores", "RandomChannelPruner RandomPruner"),
    (NOT_KERAS, "lilliput.pruning.rigl", "RigLPruner"),
    (NOT_KERAS, "lilliput.pruning.second_order", "SecondOrderPruner"),
    (ALL, "lilliput.pruning.sensitivity", "SensitivityPruner"),
    (ALL, "lilliput.pruning.sensitivity_analysis", "SensitivityAnalysis"),
    (ALL, "lilliput.pruning.slim", "SlimPruner"),
    (NOT_KERAS, "lilliput.pruning.sparse_vd", "SparseVDPruner"),
    (ALL, "lilliput.pruning.str", "STRPruner"),
    (ALL, "lilliput.pruning.taylor", "TaylorFOWeightPruner"),
    # quantization
    (ALL, "lilliput.quantization.bnn", "BNNQuantizer"),
    (ALL, "lilliput.quantization.codebook", "CodebookQuantizer"),
    (ALL, "lilliput.quantization.dorefa", "DoReFaQuantizer"),
    (ALL, "lilliput.quantization.lsq", "LSQPlusQuantizer LSQQuantizer"),
    (ALL, "lilliput.quantization.naive", "NaiveQuantizer"),
    (ALL, "lilliput.quantization.ptq", "PTQQuantizer"),
    (ALL, "lilliput.quantization.qat", "QATQuantizer"),
    (ALL, "lilliput.quantization.ranges", "RangeQuantizer"),
    # distillation
    (ALL, "lilliput.distillation.distiller", "Distiller"),
    # factorization
    (NOT_KERAS, "lilliput.factorization.factorizer", "Factorization Factorizer RankRule"),
    (NOT_KERAS, "lilliput.factorization.svd", "SVDFactorizer"),
    # speedup
    (BOTH, "lilliput.graph.groups", "ChannelGroups"),
    (BOTH, "lilliput.speedup.channels", "channel_groups"),
    ((TORCH,), "lilliput.speedup.model_speedup", "ModelSpeedup"),
    (BOTH, "lilliput.speedup.preflight", "preflight"),
    (BOTH, "lilliput.speedup.result", "SpeedupResult"),
    (BOTH, "lilliput.speedup.saved", "load"),
    (BOTH, "lilliput.compact.saving", "save"),
    (BOTH, "lilliput.speedup.shrink", "speedup"),
    (BOTH, "lilliput.recovery.recalibrate", "recalibrate"),
    ((TORCH,), "lilliput.recovery.reconstruct", "Reconstruction reconstruct"),
    # export
    ((TORCH,), "lilliput.export", "ExportResult export_executorch export_onnx export_openvino"),
    ((KERAS,), "lilliput.export.result", "ExportResult"),
    ((KERAS,), "lilliput.export.keras.litert_file", "export_litert"),
    ((KERAS,), "lilliput.export.keras.onnx_file", "export_onnx"),
    ((KERAS,), "lilliput.export.keras.latency", "litert_latency"),
    # search
    (BOTH, "lilliput.search.search", "Search"),
    (BOTH, "lilliput.search.result", "Found"),
    (BOTH, "lilliput.search.repair", "repair"),
    (BOTH, "lilliput.search.executors", "RayExecutor"),
    (BOTH, "lilliput.recipes.auto", "Compressed compress"),
    # receipt and report
    (BOTH, "lilliput.report.build", "build_report"),
    (BOTH, "lilliput.report.document", "Report"),
    (BOTH, "lilliput.export.targets.executed", "open_file"),
    (BOTH, "lilliput.report.measure", "measure measure_all"),
    (BOTH, "lilliput.report.quantization", "QuantizationReport quantization_report"),
    (BOTH, "lilliput.measure.receipt", "Figures Receipt take_receipt"),
    (BOTH, "lilliput.report.snapshot", "snapshot"),
)


def homes_of(module: str) -> dict[str, str]:
    """Return where each name of a public module is defined.

    Examples
    --------
    >>> homes_of("lilliput.torch")["LevelPruner"]
    'lilliput.pruning.level'
    """
    return {
        name: home for modules, home, names in TABLE if module in modules for name in names.split()
    }


def modules_in(package: str) -> list[str]:
    """Return the homes inside a package: importing them registers its algorithms."""
    return list(dict.fromkeys(home for _, home, _ in TABLE if home.startswith(f"{package}.")))


def lazily(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a public module."""
    homes = homes_of(module)

    def load(name: str) -> Any:
        home = homes.get(name) or _unlisted(module).get(name)
        if home is None:
            raise _unknown(module, name)
        value = getattr(import_module(home), name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[module].__all__)

    return load, names, sorted(homes)


def _unlisted(module: str) -> dict[str, str]:
    """Return algorithms for torch, which raise when they are used with Keras, not when imported."""
    rows = [row for row in TABLE if row[0] == NOT_KERAS and module == KERAS]
    return {name: home for _, home, names in rows for name in names.split()}


def _unknown(module: str, name: str) -> AttributeError:
    """Return the error for a name that is not public, with the current name if NNI had it."""
    if name[:1].isupper():  # otherwise a submodule, or a name that tools look up on every module
        error: AttributeError = import_module("lilliput.algorithms").no_such_name(module, name)
        return error
    return AttributeError(f"module {module!r} has no attribute {name!r}")
