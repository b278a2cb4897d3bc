"""Pruning algorithms, one per file."""

from lilliput.pruning.agp import AGP_Pruner, AGPPruner, AGPruner
from lilliput.pruning.apoz import ActivationAPoZRankFilterPruner, ActivationAPoZRankPruner
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.fpgm import FPGMPruner
from lilliput.pruning.l1 import L1FilterPruner, L1NormPruner
from lilliput.pruning.l2 import L2FilterPruner, L2NormPruner
from lilliput.pruning.least_squares import LeastSquaresPruner
from lilliput.pruning.level import LevelPruner
from lilliput.pruning.linear import LinearPruner
from lilliput.pruning.mean_activation import (
    ActivationMeanRankFilterPruner,
    ActivationMeanRankPruner,
)
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.pruning.sensitivity import SensitivityPruner
from lilliput.pruning.sensitivity_analysis import SensitivityAnalysis
from lilliput.pruning.slim import SlimPruner
from lilliput.pruning.taylor import TaylorFOWeightFilterPruner, TaylorFOWeightPruner

__all__ = [
    "AGPPruner",
    "AGP_Pruner",
    "AGPruner",
    "ActivationAPoZRankFilterPruner",
    "ActivationAPoZRankPruner",
    "ActivationMeanRankFilterPruner",
    "ActivationMeanRankPruner",
    "ChannelMasker",
    "ChannelPruner",
    "FPGMPruner",
    "L1FilterPruner",
    "L1NormPruner",
    "L2FilterPruner",
    "L2NormPruner",
    "LeastSquaresPruner",
    "LevelPruner",
    "LinearPruner",
    "OneShotPruner",
    "ScoreMasker",
    "SensitivityAnalysis",
    "SensitivityPruner",
    "SlimPruner",
    "TaylorFOWeightFilterPruner",
    "TaylorFOWeightPruner",
]
