"""Pruning algorithms, one per file."""

from lilliput.pruning.agp import AGP_Pruner, AGPPruner, AGPruner
from lilliput.pruning.level import LevelPruner
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker

__all__ = ["AGPPruner", "AGP_Pruner", "AGPruner", "LevelPruner", "OneShotPruner", "ScoreMasker"]
