"""Everything a PyTorch user imports: ``from lilliput.torch import LevelPruner``."""

from lilliput.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
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
from lilliput.pruning import (
    AGP_Pruner,
    AGPPruner,
    AGPruner,
    LevelPruner,
    OneShotPruner,
    ScoreMasker,
)
from lilliput.quantization import DoReFaQuantizer, NaiveQuantizer

__all__ = [
    "AGPPruner",
    "AGP_Pruner",
    "AGPruner",
    "CompressionState",
    "Compressor",
    "DoReFaQuantizer",
    "LayerInfo",
    "LevelPruner",
    "ModuleWrapper",
    "NaiveQuantizer",
    "OneShotPruner",
    "Pruner",
    "PrunerModuleWrapper",
    "QuantGrad",
    "QuantType",
    "Quantizer",
    "QuantizerModuleWrapper",
    "ScoreMasker",
    "WeightMasker",
    "strip",
]
