"""The public names, written out: a change here is a change for users and belongs in the changelog."""

import pytest

import lilliput
import lilliput.torch

TORCH = """
    AGPPruner ActivationAPoZRankPruner ActivationMeanRankPruner BNNQuantizer ChannelGroups
    ChannelMasker ChannelPruner CompressionState Compressor DoReFaQuantizer ExportResult FPGMPruner
    Figures Grid L1NormPruner L2NormPruner LSQPlusQuantizer LSQQuantizer LayerInfo
    LeastSquaresPruner LevelPruner LinearPruner ModelSpeedup ModuleWrapper NaiveQuantizer
    OneShotPruner PTQQuantizer Pruner PrunerModuleWrapper QATQuantizer QParams QuantGrad QuantType
    QuantizationReport Quantizer QuantizerModuleWrapper RangeQuantizer Receipt Reconstruction Report
    ScoreMasker SensitivityAnalysis SensitivityPruner SlimPruner SpeedupResult TaylorFOWeightPruner
    WeightMasker build_report channel_groups export_executorch export_onnx
    export_openvino load measure measure_all open_file
    preflight quantization_report recalibrate reconstruct snapshot speedup strip take_receipt
"""
TOP = """
    AGPPruner ActivationAPoZRankPruner ActivationMeanRankPruner AlgorithmError BNNQuantizer BitsRule
    ChannelMasker ChannelPruner CompressionState Compressor ConfigError DoReFaQuantizer ExportError
    FPGMPruner L1NormPruner L2NormPruner LSQPlusQuantizer LSQQuantizer LayerInfo LeastSquaresPruner
    LevelPruner LilliputError LinearPruner MissingExtraError NaiveQuantizer OneShotPruner
    PTQQuantizer PruneRule Pruner QATQuantizer QuantGrad QuantRule QuantType Quantizer
    RangeQuantizer Rule ScheduledPruneRule ScoreMasker SensitivityAnalysis SensitivityPruner
    SlimPruner StageError StateError TaylorFOWeightPruner UnsupportedModelError WeightMasker
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


OLDER = {
    "AGP_Pruner": "AGPPruner",
    "AGPruner": "AGPPruner",
    "ActivationAPoZRankFilterPruner": "ActivationAPoZRankPruner",
    "ActivationMeanRankFilterPruner": "ActivationMeanRankPruner",
    "L1FilterPruner": "L1NormPruner",
    "L2FilterPruner": "L2NormPruner",
    "LsqPlusQuantizer": "LSQPlusQuantizer",
    "LsqQuantizer": "LSQQuantizer",
    "ObserverQuantizer": "PTQQuantizer",
    "PtqQuantizer": "PTQQuantizer",
    "QAT_Quantizer": "QATQuantizer",
    "QATquantizer": "QATQuantizer",
    "TaylorFOWeightFilterPruner": "TaylorFOWeightPruner",
}


@pytest.mark.parametrize("module", [lilliput, lilliput.torch], ids=["top", "torch"])
def test_a_name_of_nni_is_answered_with_todays_and_with_the_shim(module):
    for older, today in OLDER.items():
        with pytest.raises(AttributeError) as caught:
            getattr(module, older)
        assert f"{older!r}: it is {today} today" in str(caught.value)
        assert "python -m lilliput.compat.nni" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'$"):
        _ = module.Nonsense
