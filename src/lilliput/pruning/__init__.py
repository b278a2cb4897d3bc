"""Pruning algorithms, one per file."""

from lilliput.pruning.agp import AGPPruner
from lilliput.pruning.apoz import ActivationAPoZRankPruner
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.fpgm import FPGMPruner
from lilliput.pruning.l1 import L1NormPruner
from lilliput.pruning.l2 import L2NormPruner
from lilliput.pruning.least_squares import LeastSquaresPruner
from lilliput.pruning.level import LevelPruner
from lilliput.pruning.linear import LinearPruner
from lilliput.pruning.mean_activation import (
    ActivationMeanRankPruner,
)
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.pruning.sensitivity import SensitivityPruner
from lilliput.pruning.sensitivity_analysis import SensitivityAnalysis
from lilliput.pruning.slim import SlimPruner
from lilliput.pruning.taylor import TaylorFOWeightPruner

__all__ = [
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
]
