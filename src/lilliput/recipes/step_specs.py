"""The schema of the steps of a recipe, one class per verb."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)

from lilliput.errors import nearest
from lilliput.export.targets.table import TARGETS

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
LOSSES = ("cross_entropy", "mse")
ORIGINAL = "original"
FOUND = "found"  # the config list of the preceding search


def is_reference(text: str) -> bool:
    """Whether a text has the form ``module:function``.

    Examples
    --------
    >>> is_reference("package.digits:build"), is_reference("digits.build")
    (True, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def _check_reference(text: str) -> str:
    if not is_reference(text):
        raise ValueError("expected module:function, such as 'digits:build'.")
    return text


def _check_loss(text: str) -> str:
    if text not in LOSSES and not is_reference(text):
        raise ValueError(f"expected {', '.join(LOSSES)} or module:function.")
    return text


def _check_teacher(text: str) -> str:
    if text != ORIGINAL and not is_reference(text):
        raise ValueError("expected 'original', or module:factory of another model.")
    return text


def _check_model(text: str) -> str:
    if not text.strip():
        raise ValueError("expected module:factory, or the folder of an earlier run.")
    return text


def _check_name(text: str) -> str:
    if PurePath(text).name != text or text.startswith(".") or "\\" in text or "\0" in text:
        raise ValueError("expected the name of a file; it is written to the run folder.")
    return text


def _check_format(value: Any) -> Any:
    if value not in [*TARGETS]:
        names = " or ".join(repr(name) for name in TARGETS)
        raise ValueError(f"received {value!r}, expected {names}.{nearest(str(value), TARGETS)}")
    return value


def _nothing_is_empty(value: Any) -> Any:
    """Read ``speedup:`` without a value as ``speedup: {}``."""
    return {} if value is None else value


Reference = Annotated[str, AfterValidator(_check_reference)]
Loss = Annotated[str, AfterValidator(_check_loss)]
Teacher = Annotated[str, AfterValidator(_check_teacher)]
ModelSource = Annotated[str, AfterValidator(_check_model)]
Format = Annotated[
    str, BeforeValidator(_check_format), WithJsonSchema({"enum": [*TARGETS], "type": "string"})
]
FileName = Annotated[str, AfterValidator(_check_name)]
Count = Annotated[int, Field(ge=1)]
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Options = dict[str, JsonValue]


class Strict(BaseModel):
    """No unknown keys, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Training(Strict):
    """Training settings of a step that override those of the recipe."""

    optimizer: Reference | None = Field(
        None, description="(model) -> optimizer, for this step only."
    )
    learning_rate: LearningRate | None = Field(
        None, description="Learning rate of all parameter groups in this step."
    )


class Taught(Training):
    """Training settings of a step, with an optional teacher."""

    teacher: Teacher | None = Field(
        None,
        description="'original' or module:factory; the distance from its outputs is added to the loss.",
    )


class CompressStep(Taught):
    """The options of an algorithm, and the training with it."""

    config: JsonValue = Field(None, description="The config list, or a file with it.")
    options: Options = Field({}, description="Other arguments of the algorithm.")
    epochs: Annotated[int, Field(ge=0)] = Field(0, description="Epochs of training with it.")
    batches: Count | None = Field(
        None,
        description="Number of batches for calibration; 16 for quantizers without epochs.",
    )


class PruneStep(CompressStep):
    """Mask weights or channels, and train with the masks."""

    verb: ClassVar[str] = "prune"
    prune: str = Field(description="Name of a pruner; see 'lilliput list'.")


class QuantizeStep(CompressStep):
    """Quantize weights and activations, after calibration or during training."""

    verb: ClassVar[str] = "quantize"
    quantize: str = Field(description="Name of a quantizer; see 'lilliput list'.")


class FactorizeStep(Strict):
    """Replace layers by two smaller ones each."""

    verb: ClassVar[str] = "factorize"
    factorize: str = Field(description="Name of a factorizer; see 'lilliput list'.")
    config: JsonValue = Field(description="The config list, or a file with it.")


class RecoverStep(Strict):
    """Recover accuracy lost to pruning, from batches and without training."""

    verb: ClassVar[str] = "recover"
    recover: Literal["reconstruct", "match", "recalibrate"] = Field(
        description="Refit layers (torch) or batch norms to the original, or re-estimate batch norms."
    )
    batches: Count = Field(16, description="Batches to run.")


class SpeedupOptions(Strict):
    """How channels are cut out."""

    extend_masks: bool = Field(
        False, description="Also remove channels for which only the filters are masked."
    )
    allow_graph: bool = Field(
        True, description="Whether parts of the model may become captured graphs (torch)."
    )


class SpeedupStep(Strict):
    """Cut masked channels out of the model."""

    verb: ClassVar[str] = "speedup"
    speedup: Annotated[SpeedupOptions, BeforeValidator(_nothing_is_empty)]


class FinetuneOptions(Taught):
    """How long to train."""

    epochs: Count = Field(description="Epochs to train.")


class FinetuneStep(Strict):
    """Train the current model."""

    verb: ClassVar[str] = "finetune"
    finetune: FinetuneOptions


class DistillStep(Training):
    """Train the model to match a teacher's outputs, optionally with labels."""

    verb: ClassVar[str] = "distill"
    distill: Teacher = Field(description="'original', or module:factory of another model.")
    config: JsonValue = Field(None, description="What is compared; by default the outputs.")
    epochs: Count = Field(description="Epochs to train.")
    labels: bool = Field(False, description="Whether to add the loss of the recipe.")


class ExportStep(Strict):
    """Write a file, execute it, and compare."""

    verb: ClassVar[str] = "export"
    export: Format = Field(description=f"Format of the file: {', '.join(TARGETS)}.")
    file: FileName = Field(description="Name of the file in the run folder.")
    options: Options = Field(
        {}, description="Other arguments of the exporter, such as assume_vnni: false."
    )

    @model_validator(mode="after")
    def _check_suffix(self) -> ExportStep:
        target = TARGETS[self.export]
        if not self.file.endswith(target.suffix):
            raise ValueError(
                f"'file' {self.file!r}: expected a name that ends in {target.suffix!r}."
            )
        known = target.options
        for key in self.options:
            if key not in known:
                raise ValueError(
                    f"'options': {self.export} files have no option {key!r}.{nearest(key, known)} "
                    f"Expected: {', '.join(known)}."
                )
        if not isinstance(self.options.get("assume_vnni"), bool | None):
            raise ValueError("'options' → 'assume_vnni': expected true, false or null.")
        return self


class AnalyzeStep(Strict):
    """Measure how much each layer can lose, for the report; the model is not changed."""

    verb: ClassVar[str] = "analyze"
    analyze: str = Field(description="Name of a one-shot pruner, such as 'l1' or 'level'.")
    config: JsonValue = Field(
        None, description="Which layers to analyze; by default those of the pruner."
    )
    sparsities: Annotated[list[Share], Field(min_length=1)] | None = Field(
        None, description="Sparsities to try; 0.1 to 0.9 by default."
    )


class GoalStep(Strict):
    """The settings of a step that works towards a budget with trials."""

    config: JsonValue = Field(None, description="Rules whose values can be choices, or a file.")
    target: str = Field(
        "onnxruntime", description="The runtime: onnxruntime, openvino, executorch."
    )
    trials: Count = Field(20, description="Maximum number of config lists to evaluate.")
    networks: Count = Field(12, description="Number of networks to time for a latency budget.")
    export_options: Options = Field(
        {}, description="Other arguments of the exporter, such as assume_vnni: false."
    )


class SearchStep(GoalStep):
    """Find the config list that meets a budget; later steps use it with ``config: found``."""

    verb: ClassVar[str] = "search"
    search: str = Field(description="Strategy: knapsack, evolution, netadapt, annealing or bayes.")
    budget: Options = Field(description="Such as {macs: 0.5, drop: 0.01}.")
    pruner: str = Field("l1", description="Name of the pruner, which removes channels.")
    quantizer: str = Field("ptq", description="Name of the quantizer.")
    recover: Literal["auto", "reconstruct", "recalibrate", "none"] = Field(
        "auto", description="How trials recover the accuracy lost to pruning."
    )
    batches: Count = Field(16, description="Batches for sensitivities, recovery and calibration.")


class AutoStep(GoalStep):
    """Do everything needed to meet a budget: search, prune, cut, recover, quantize, train and export."""

    verb: ClassVar[str] = "auto"
    auto: Options = Field(description="The budget, such as {latency: 0.5, drop: 0.005}.")
    epochs: Annotated[int, Field(ge=0)] = Field(
        10, description="Maximum number of training epochs."
    )
    hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Time limit."
    )
    trials: Count = Field(8, description="Maximum number of config lists to evaluate.")


STEPS: tuple[type[Strict], ...] = (
    PruneStep,
    FactorizeStep,
    RecoverStep,
    SpeedupStep,
    FinetuneStep,
    DistillStep,
    QuantizeStep,
    ExportStep,
    AnalyzeStep,
    SearchStep,
    AutoStep,
)
VERBS = {cls.verb: cls for cls in STEPS}  # type: ignore[attr-defined]


def verb_of(step: Any) -> str | None:
    """Return the verb of a step as written in the file; None unless it has exactly one."""
    if not isinstance(step, Mapping):
        return getattr(step, "verb", None)
    found = [key for key in VERBS if key in step]
    return found[0] if len(found) == 1 else None


Step = Annotated[
    Union[
        Annotated[PruneStep, Tag("prune")],
        Annotated[FactorizeStep, Tag("factorize")],
        Annotated[RecoverStep, Tag("recover")],
        Annotated[SpeedupStep, Tag("speedup")],
        Annotated[FinetuneStep, Tag("finetune")],
        Annotated[DistillStep, Tag("distill")],
        Annotated[QuantizeStep, Tag("quantize")],
        Annotated[ExportStep, Tag("export")],
        Annotated[AnalyzeStep, Tag("analyze")],
        Annotated[SearchStep, Tag("search")],
        Annotated[AutoStep, Tag("auto")],
    ],
    Discriminator(verb_of, custom_error_type="verb", custom_error_message="verb"),
]


def teacher_of(step: Any) -> str | None:
    """Return the teacher of a step: 'original', a reference, or None without one."""
    if isinstance(step, DistillStep):
        return step.distill
    found: str | None = getattr(training_of(step), "teacher", None)
    return found


def uses_labels(step: Any) -> bool:
    """Whether a step trains with the loss of the recipe, not only with the teacher's outputs."""
    return not isinstance(step, DistillStep) or step.labels


def epochs_of(step: Any) -> int:
    """Return how many epochs a step trains."""
    if isinstance(step, FinetuneStep):
        return step.finetune.epochs
    if isinstance(step, AutoStep):
        return 0  # it trains by itself, with the original as teacher
    return int(getattr(step, "epochs", 0))


def training_of(step: Any) -> Any:
    """Return the training settings of a step."""
    return step.finetune if isinstance(step, FinetuneStep) else step
