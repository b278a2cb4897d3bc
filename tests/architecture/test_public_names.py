"""The public names, written out: a change here is a change for users and belongs in the changelog."""

import lilliput
import lilliput.torch

TORCH = """
    AGPPruner AGP_Pruner AGPruner ActivationAPoZRankFilterPruner ActivationAPoZRankPruner
    ActivationMeanRankFilterPruner ActivationMeanRankPruner BNNQuantizer ChannelGroups ChannelMasker
    ChannelPruner CompressionState Compressor DoReFaQuantizer ExportResult FPGMPruner Figures Grid
    L1FilterPruner L1NormPruner L2FilterPruner L2NormPruner LSQPlusQuantizer LSQQuantizer LayerInfo
    LeastSquaresPruner LevelPruner LinearPruner LsqPlusQuantizer LsqQuantizer ModelSpeedup
    ModuleWrapper NaiveQuantizer
    ObserverQuantizer OneShotPruner PTQQuantizer Pruner PrunerModuleWrapper PtqQuantizer QATQuantizer
    QAT_Quantizer QATquantizer QParams QuantGrad QuantType QuantizationReport Quantizer
    QuantizerModuleWrapper RangeQuantizer Receipt Reconstruction Report ScoreMasker SensitivityAnalysis
    SensitivityPruner SlimPruner SpeedupResult TaylorFOWeightFilterPruner TaylorFOWeightPruner
    WeightMasker build_report channel_groups export_onnx load measure measure_all open_file preflight
    quantization_report recalibrate reconstruct snapshot speedup strip take_receipt
"""
TOP = """
    AGPPruner AGP_Pruner AGPruner ActivationAPoZRankFilterPruner ActivationAPoZRankPruner
    ActivationMeanRankFilterPruner ActivationMeanRankPruner AlgorithmError BNNQuantizer BitsRule
    ChannelMasker ChannelPruner CompressionState Compressor ConfigError DoReFaQuantizer ExportError
    FPGMPruner L1FilterPruner L1NormPruner L2FilterPruner L2NormPruner LSQPlusQuantizer LSQQuantizer
    LayerInfo LeastSquaresPruner LevelPruner LilliputError LinearPruner LsqPlusQuantizer LsqQuantizer
    MissingExtraError
    NaiveQuantizer ObserverQuantizer OneShotPruner PTQQuantizer PruneRule Pruner PtqQuantizer
    QATQuantizer QAT_Quantizer QATquantizer QuantGrad QuantRule QuantType Quantizer RangeQuantizer Rule
    ScheduledPruneRule ScoreMasker SensitivityAnalysis SensitivityPruner SlimPruner StageError
    StateError TaylorFOWeightFilterPruner TaylorFOWeightPruner UnsupportedModelError WeightMasker
    WriteError __version__ config_schema list_pruners list_quantizers pruner quantizer read_rules
    register_pruner register_quantizer write_rules
"""


def test_the_torch_facade_is_what_it_was():
    assert sorted(lilliput.torch.__all__) == sorted(TORCH.split())
    assert all(hasattr(lilliput.torch, name) for name in lilliput.torch.__all__)


def test_the_top_level_is_what_it_was():
    assert sorted(lilliput.__all__) == sorted(TOP.split())
    assert all(hasattr(lilliput, name) for name in lilliput.__all__)


def test_tab_completion_lists_every_public_name_and_nothing_else():
    for module in (lilliput, lilliput.torch):
        assert dir(module) == sorted(module.__all__)


def test_both_doors_lead_to_the_same_classes():
    shared = set(lilliput.__all__) & set(lilliput.torch.__all__)
    assert len(shared) > 10
    assert all(getattr(lilliput, name) is getattr(lilliput.torch, name) for name in shared)
