"""NNI's names and paths: data only, for every generation from 2019 to v3.0."""

from __future__ import annotations

# Names that the shim provides, by the part of NNI they belong to. A pruner or quantizer is looked
# up in Lilliput's registry, everything else in lilliput.torch, or in lilliput itself for
# TensorFlow; one that is not found is reported as not available in this version. A new algorithm
# therefore needs no change here.
NAMES: dict[str, tuple[str, ...]] = {
    "framework": (
        *("Compressor", "Pruner", "Quantizer", "WeightMasker", "LayerInfo"),
        *("PrunerModuleWrapper", "QuantizerModuleWrapper", "QuantGrad", "QuantType"),
    ),
    "bases of 2019": ("TorchCompressor", "TorchPruner", "TorchQuantizer"),
    "pruners": (
        *("LevelPruner", "AGPruner", "AGP_Pruner", "AGPPruner", "SensitivityPruner"),
        *("SlimPruner", "L1FilterPruner", "L2FilterPruner", "L1NormPruner", "L2NormPruner"),
        *("FPGMPruner", "TaylorFOWeightFilterPruner", "TaylorFOWeightPruner", "TaylorPruner"),
        *("ActivationAPoZRankFilterPruner", "ActivationAPoZRankPruner"),
        *("ActivationMeanRankFilterPruner", "ActivationMeanRankPruner"),
        *("LotteryTicketPruner", "LinearPruner", "MovementPruner", "TransformerHeadPruner"),
        *("ADMMPruner", "NetAdaptPruner", "SimulatedAnnealingPruner"),
        *("AutoCompressPruner", "AMCPruner"),
    ),
    "quantizers": (
        *("NaiveQuantizer", "QATquantizer", "QAT_Quantizer", "QATQuantizer", "DoReFaQuantizer"),
        *("BNNQuantizer", "LsqQuantizer", "LsqPlusQuantizer"),
        *("ObserverQuantizer", "PtqQuantizer"),
    ),
    "maskers": ("WeightMasker", "LevelPrunerMasker", "StructuredWeightMasker"),
    "experiments": ("AutoCompressionExperiment", "CompressionExperiment"),
    "speedup": ("ModelSpeedup", "apply_compression_results"),
    "tensorrt": ("ModelSpeedupTensorRT", "CalibrateType"),
    "settings": ("set_quant_scheme_dtype",),
    "counter": ("count_flops_params",),
    "dependencies": (
        *("ChannelDependency", "GroupDependency", "CatPaddingDependency"),
        *("InputChannelDependency",),
    ),
    "conflicts": ("fix_mask_conflict",),
    "utils": (
        *("count_flops_params", "SensitivityAnalysis", "not_safe_to_prune", "ChannelDependency"),
        *("GroupDependency", "CatPaddingDependency", "InputChannelDependency"),
        *("fix_mask_conflict",),
    ),
    "sensitivity": ("SensitivityAnalysis",),
    "utils of v3": ("auto_set_denpendency_group_ids",),
    "distillers": ("DynamicLayerwiseDistiller", "Adaptive1dLayerwiseDistiller"),
    # The following can be imported; using it shows how the same is written here.
    "data collectors": (
        *("DataCollector", "HookCollectorInfo", "WeightDataCollector"),
        *("WeightTrainerBasedDataCollector", "SingleHookTrainerBasedDataCollector"),
        *("TrainerBasedDataCollector", "EvaluatorBasedDataCollector"),
        *("EvaluatorBasedHookDataCollector", "TargetDataCollector"),
        *("EvaluatorBasedTargetDataCollector",),
    ),
    "metrics calculators": (
        *("MetricsCalculator", "NormMetricsCalculator", "MultiDataNormMetricsCalculator"),
        *("HookDataNormMetricsCalculator", "DistMetricsCalculator", "APoZRankMetricsCalculator"),
        *("MeanRankMetricsCalculator", "StraightMetricsCalculator"),
    ),
    "sparsity allocators": (
        *("SparsityAllocator", "NormalSparsityAllocator", "BankSparsityAllocator"),
        *("GlobalSparsityAllocator", "Conv2dDependencyAwareAllocator"),
        *("DependencyAwareAllocator", "BalancedSparsityAllocator"),
    ),
    "schedulers": (
        *("PruningScheduler", "BasePruningScheduler", "Task", "TaskResult", "TaskGenerator"),
        *("FunctionBasedTaskGenerator", "AGPTaskGenerator", "LinearTaskGenerator"),
        *("LotteryTicketTaskGenerator", "SimulatedAnnealingTaskGenerator"),
    ),
    "target spaces": (
        *("TargetType", "TargetSpace", "PruningTargetSpace", "QuantizationTargetSpace"),
        *("DistillationTargetSpace", "ModuleSetting", "PruningSetting", "QuantizationSetting"),
        *("Scaling", "trans_legacy_config_list", "select_modules_by_config"),
    ),
    "evaluators": (
        *("Evaluator", "TorchEvaluator", "LightningEvaluator", "TransformersEvaluator"),
        *("DeepspeedTorchEvaluator",),
    ),
    "tensorflow": ("Compressor", "Pruner", "Quantizer", "LayerInfo"),
    "tensorflow bases of 2019": ("TfCompressor", "TfPruner", "TfQuantizer"),
    "tensorflow pruners": (
        *("LevelPruner", "AGPruner", "AGP_Pruner", "SensitivityPruner", "SlimPruner"),
        *("FPGMPruner", "TfLevelPruner", "TfAGPruner", "TfSensitivityPruner"),
    ),
    "tensorflow quantizers": (
        *("NaiveQuantizer", "QATquantizer", "QAT_Quantizer", "DoReFaQuantizer"),
        *("TfNaiveQuantizer", "TfQATquantizer", "TfDoReFaQuantizer"),
    ),
    "tuning": (
        *("trace", "get_next_parameter", "get_current_parameter", "report_intermediate_result"),
        *("report_final_result", "get_experiment_id", "get_trial_id", "get_sequence_id"),
        *("nas", "retiarii", "experiment", "hpo", "trial", "tuner", "assessor"),
    ),
}

FOR_TENSORFLOW = frozenset(part for part in NAMES if part.startswith("tensorflow"))

# Current names of classes, where they differ.
TODAY = {
    "TorchCompressor": "Compressor",
    "TorchPruner": "Pruner",
    "TorchQuantizer": "Quantizer",
    "TfCompressor": "Compressor",
    "TfPruner": "Pruner",
    "TfQuantizer": "Quantizer",
}

# NNI renamed these algorithms between 2019 and v3; the registry is also searched for the other
# names.
RENAMED = {
    "L1FilterPruner": ("L1NormPruner",),
    "L2FilterPruner": ("L2NormPruner",),
    "TaylorFOWeightFilterPruner": ("TaylorFOWeightPruner", "TaylorPruner"),
    "TaylorFOWeightPruner": ("TaylorPruner", "TaylorFOWeightFilterPruner"),
    "TaylorPruner": ("TaylorFOWeightPruner", "TaylorFOWeightFilterPruner"),
    "ActivationAPoZRankFilterPruner": ("ActivationAPoZRankPruner",),
    "ActivationMeanRankFilterPruner": ("ActivationMeanRankPruner",),
    "TfLevelPruner": ("LevelPruner",),
    "TfAGPruner": ("AGPruner",),
    "TfSensitivityPruner": ("SensitivityPruner",),
    "TfNaiveQuantizer": ("NaiveQuantizer",),
    "TfQATquantizer": ("QATquantizer",),
    "TfDoReFaQuantizer": ("DoReFaQuantizer",),
}

# The generation of classes of a path: the first matching row. Quantizers of v2 are of one kind.
STACKS = (
    ("nni.algorithms.compression.v2", "second"),
    ("nni.compression.pytorch.pruning", "second"),
    ("nni.compression.pruning", "third"),
    ("nni.compression.quantization", "third"),
    ("nni.compression.distillation", "third"),
    ("nni.compression.base", "third"),
    ("nni.contrib", "third"),
    ("nni.compression.pytorch.base", "second"),
    ("nni", "first"),
)

# Pruners that are strategies of Search now: their module, the form of the first stack, and of the
# second (which did not have NetAdapt).
SEARCHING: dict[str, tuple[str, str, str]] = {
    "NetAdaptPruner": ("searching", "NetAdaptForm", "NetAdaptForm"),
    "SimulatedAnnealingPruner": ("searching", "AnnealingForm", "SecondAnnealingForm"),
    "AutoCompressPruner": ("autocompress", "RoundsThatCut", "RoundsThatMask"),
    "AMCPruner": ("amc", "SearchedChannels", "SearchedAndCut"),
}

# Names that are defined here, by module.
HERE = {
    "ModelSpeedup": "tools.speedup",
    "ModelSpeedupTensorRT": "tools.tensorrt",
    "CalibrateType": "tools.tensorrt",
    "apply_compression_results": "tools.filing",
    "set_quant_scheme_dtype": "config.settings",
    "count_flops_params": "tools.flops",
    "ChannelDependency": "tools.dependency",
    "GroupDependency": "tools.dependency",
    "CatPaddingDependency": "tools.dependency",
    "InputChannelDependency": "tools.dependency",
    "not_safe_to_prune": "tools.dependency",
    "fix_mask_conflict": "tools.conflicts",
    "QuantType": "classes.quant_types",
    "trace": "classes.tracing",
    "Evaluator": "classes.evaluators",
    "TorchEvaluator": "classes.evaluators",
    "LightningEvaluator": "classes.library_evaluators",
    "TransformersEvaluator": "classes.library_evaluators",
    "auto_set_denpendency_group_ids": "tools.dependency_groups",
    "DynamicLayerwiseDistiller": "classes.distillers",
    "Adaptive1dLayerwiseDistiller": "classes.distillers",
}

_COLLECTED = ("data collectors", "metrics calculators", "sparsity allocators")
INTERNAL = (*_COLLECTED, "schedulers", "target spaces")

# Names of other functions under the paths of 1.x.
HERE_IN_V1 = {"count_flops_params": "count_flops_and_params"}

_ALGORITHMS = ("pruners", "quantizers")
_V0 = ("framework", "bases of 2019", *_ALGORITHMS)
_V1 = ("framework", *_ALGORITHMS, "speedup", "utils")
_TF_ALGORITHMS = ("tensorflow pruners", "tensorflow quantizers")
_TF_V0 = ("tensorflow", "tensorflow bases of 2019", *_TF_ALGORITHMS)

# Import path -> the parts of NNI that are found there. Every prefix of a path has its own row.
PATHS: dict[str, tuple[str, ...]] = {
    "nni": ("tuning",),
    # August and September 2019, never released
    "nni.compressors": (),
    "nni.compressors.torchCompressor": _V0,
    "nni.compressors.torch_compressor": _V0,
    "nni.compressors.tfCompressor": _TF_V0,
    "nni.compressors.tf_compressor": _TF_V0,
    # v1.1 to v1.9
    "nni.compression": ("framework", "evaluators"),
    "nni.compression.torch": _V1,
    "nni.compression.torch.compressor": ("framework",),
    "nni.compression.torch.pruning": ("pruners", "maskers"),
    "nni.compression.torch.pruning.one_shot": ("pruners",),
    "nni.compression.torch.pruning.weight_masker": ("maskers",),
    "nni.compression.torch.quantization": ("quantizers",),
    "nni.compression.torch.speedup": ("speedup",),
    "nni.compression.torch.utils": ("utils",),
    "nni.compression.torch.utils.counter": ("counter",),
    "nni.compression.torch.utils.mask_conflict": ("conflicts",),
    "nni.compression.torch.utils.sensitivity_analysis": ("sensitivity",),
    "nni.compression.torch.utils.shape_dependency": ("dependencies",),
    "nni.compression.tensorflow": ("tensorflow", *_TF_ALGORITHMS),
    "nni.compression.tensorflow.compressor": ("tensorflow",),
    "nni.compression.tensorflow.pruning": ("tensorflow pruners",),
    "nni.compression.tensorflow.pruning.one_shot": ("tensorflow pruners",),
    # v2.0 to v2.10
    "nni.compression.pytorch": (*_V1, "evaluators", "experiments"),
    "nni.compression.pytorch.compressor": ("framework",),
    "nni.compression.pytorch.pruning": ("pruners", "maskers", "schedulers"),
    "nni.compression.pytorch.pruning.tools": (*_COLLECTED, "schedulers"),
    "nni.compression.pytorch.base": ("framework", "schedulers"),
    "nni.compression.pytorch.quantization": ("quantizers",),
    "nni.compression.pytorch.quantization.settings": ("settings",),
    "nni.compression.pytorch.quantization_speedup": ("tensorrt",),
    "nni.compression.pytorch.speedup": ("speedup",),
    "nni.compression.pytorch.utils": ("utils",),
    "nni.compression.pytorch.utils.counter": ("counter",),
    "nni.compression.pytorch.utils.mask_conflict": ("conflicts",),
    "nni.compression.pytorch.utils.sensitivity_analysis": ("sensitivity",),
    "nni.compression.pytorch.utils.shape_dependency": ("dependencies",),
    "nni.algorithms": (),
    "nni.algorithms.compression": (),
    "nni.algorithms.compression.pytorch": (),
    "nni.algorithms.compression.pytorch.pruning": ("pruners", "maskers"),
    "nni.algorithms.compression.pytorch.pruning.one_shot": ("pruners",),
    "nni.algorithms.compression.pytorch.pruning.weight_masker": ("maskers",),
    "nni.algorithms.compression.pytorch.auto_compress": ("experiments",),
    "nni.algorithms.compression.pytorch.quantization": ("quantizers",),
    "nni.algorithms.compression.tensorflow": (),
    "nni.algorithms.compression.tensorflow.pruning": ("tensorflow pruners",),
    "nni.algorithms.compression.tensorflow.pruning.one_shot": ("tensorflow pruners",),
    "nni.algorithms.compression.v2": (),
    "nni.algorithms.compression.v2.pytorch": ("evaluators",),
    "nni.algorithms.compression.v2.pytorch.base": ("framework", "schedulers"),
    "nni.algorithms.compression.v2.pytorch.pruning": ("pruners", "schedulers"),
    "nni.algorithms.compression.v2.pytorch.pruning.tools": (*_COLLECTED, "schedulers"),
    # v3.0
    "nni.compression.pruning": ("pruners",),
    "nni.compression.quantization": ("quantizers",),
    "nni.compression.speedup": ("speedup",),
    "nni.compression.quantization_speedup": ("tensorrt",),
    "nni.compression.utils": ("utils", "utils of v3", "evaluators"),
    "nni.compression.distillation": ("distillers",),
    "nni.compression.base": (),
    "nni.compression.base.compressor": ("framework",),
    "nni.compression.base.config": ("target spaces",),
    "nni.compression.base.setting": ("target spaces",),
    "nni.compression.base.target_space": ("target spaces",),
    # v3.0rc1, which had both stacks
    "nni.contrib": (),
    "nni.contrib.compression": ("framework", "evaluators"),
    "nni.contrib.compression.pruning": ("pruners",),
    "nni.contrib.compression.quantization": ("quantizers",),
    "nni.contrib.compression.distillation": ("distillers",),
    "nni.contrib.compression.utils": ("utils of v3", "evaluators"),
}

# Files of algorithms, which programs also imported from: they have the same names.
_OF_V1 = (
    *("agp", "lottery_ticket", "admm_pruner", "net_adapt_pruner", "simulated_annealing_pruner"),
    *("auto_compress_pruner", "sensitivity_pruner", "one_shot_pruner", "iterative_pruner"),
    *("transformer_pruner", "amc"),
)
_OF_V2 = (
    *("basic_pruner", "iterative_pruner", "movement_pruner", "auto_compress_pruner"),
    *("amc_pruner", "basic_scheduler"),
)
_QUANTIZERS = (
    *("quantizers", "qat_quantizer", "lsq_quantizer", "observer_quantizer", "dorefa_quantizer"),
    *("bnn_quantizer", "native_quantizer"),
)
_FILES = {
    "nni.compression.torch.pruning": _OF_V1,
    "nni.compression.torch.quantization": ("quantizers",),
    "nni.compression.torch.speedup": ("compressor",),
    "nni.compression.pytorch.pruning": _OF_V2,
    "nni.compression.pytorch.quantization": _QUANTIZERS,
    "nni.compression.pytorch.quantization_speedup": ("integrated_tensorrt",),
    "nni.compression.pytorch.speedup": ("compressor",),
    "nni.algorithms.compression.pytorch.pruning": _OF_V1,
    "nni.algorithms.compression.pytorch.quantization": _QUANTIZERS,
    "nni.algorithms.compression.v2.pytorch.pruning": _OF_V2,
}
PATHS |= {f"{home}.{file}": PATHS[home] for home, files in _FILES.items() for file in files}
