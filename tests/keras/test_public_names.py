"""The names of the Keras façade, written out, and their likeness to those of torch."""

import lilliput
import lilliput.keras

NAMES = """
    AGPPruner ActivationAPoZRankPruner ActivationMeanRankPruner LSQPlusQuantizer LSQQuantizer
    SlimPruner TaylorFOWeightPruner BNNQuantizer ChannelGroups ChannelMasker ChannelPruner CompressionCallback
    CompressionState Compressor DoReFaQuantizer ExportResult FPGMPruner Figures Grid L1NormPruner
    L2NormPruner LayerInfo LevelPruner LinearPruner ModuleWrapper NaiveQuantizer OneShotPruner
    PTQQuantizer Pruner PrunerModuleWrapper QATQuantizer QParams QuantGrad QuantType
    QuantizationReport Quantizer QuantizerModuleWrapper RangeQuantizer Receipt Report ScoreMasker
    SensitivityAnalysis SensitivityPruner SpeedupResult WeightMasker build_report channel_groups
    export_litert export_onnx litert_latency measure measure_all open_file quantization_report
    snapshot speedup strip take_receipt
"""


def test_the_facade_is_what_it_was():
    assert sorted(lilliput.keras.__all__) == sorted(NAMES.split())
    assert all(hasattr(lilliput.keras, name) for name in lilliput.keras.__all__)


def test_tab_completion_lists_every_public_name():
    assert dir(lilliput.keras) == sorted(lilliput.keras.__all__)


def test_all_doors_lead_to_the_same_classes():
    shared = set(lilliput.__all__) & set(lilliput.keras.__all__)
    assert len(shared) > 10
    assert all(getattr(lilliput, name) is getattr(lilliput.keras, name) for name in shared)
