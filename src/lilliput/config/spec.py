"""Typed rules: the valid values of each key of a config list.

An algorithm that needs its own key extends the rule it starts from and names it::

    class MyRule(PruneRule):
        temperature: float = 1.0

    class MyPruner(Pruner):
        rule = MyRule
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

QuantTarget = Literal["weight", "input", "output"]
Scheme = Literal["symmetric", "affine"]
Dtype = Literal["int", "uint"]
QuantGranularity = Literal["per_tensor", "per_channel", "per_group"]


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value


def _check_fraction(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 <= value < 1:
        hint = f" Did you mean {value / 100:g}?" if 1 < value < 100 else ""
        raise ValueError(f"expected a fraction in [0, 1).{hint}")
    return value


def _check_unique(names: list[str]) -> list[str]:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ValueError(f"{', '.join(map(repr, twice))} is listed more than once; list it once.")
    return names


_NAMES_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
}
Names = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(_as_list),
    AfterValidator(_check_unique),
    WithJsonSchema(_NAMES_SCHEMA),
]
Targets = Annotated[list[QuantTarget], Field(min_length=1), BeforeValidator(_as_list)]
Fraction = Annotated[
    float, Field(ge=0, lt=1, allow_inf_nan=False), BeforeValidator(_check_fraction)
]
Bits = Annotated[int, Field(ge=1, le=16)]
MOST = (
    2**31 - 1
)  # of anything that is counted: a larger number is a slip, and no float holds any int
Epoch = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Pattern = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}:[1-9][0-9]{0,5}$")]
Block = Annotated[list[Count], Field(min_length=2, max_length=2), BeforeValidator(_as_list)]


class Rule(BaseModel):
    """Layer selection: the keys that every algorithm shares."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    op_types: Names | None = Field(
        None,
        description="Layer classes, or 'default' for the algorithm's own list. '!Name' excludes one.",
    )
    op_names: Names | None = Field(
        None,
        description="Layer names: exact, glob ('encoder.*') or 're:<regex>'. '!name' excludes one.",
    )
    exclude: bool = Field(False, description="True to leave these layers alone.")

    def settings(self) -> dict[str, Any]:
        """Return the rule as a plain dict for wrappers, without the keys that were not set."""
        return self.model_dump(exclude_none=True, exclude={"exclude"})


class PruneRule(Rule):
    """How much to prune."""

    sparsity: Fraction | None = Field(
        None, description="Fraction of each layer's weights to remove."
    )


class PatternKeys(BaseModel):
    """The pattern in which single weights are removed."""

    model_config = ConfigDict(defer_build=True)

    granularity: Pattern | Block | None = Field(
        None,
        description="'2:4': keep 2 of every 4 consecutive inputs; [rows, columns]: whole blocks.",
    )

    @property
    def pattern_sparsity(self) -> float | None:
        """The sparsity of an N:M pattern, or None."""
        if not isinstance(self.granularity, str):
            return None
        kept, of = map(int, self.granularity.split(":"))
        return 1 - kept / of

    @model_validator(mode="after")
    def _check_pattern(self) -> PatternKeys:
        share = self.pattern_sparsity
        if share is not None and share <= 0:
            raise ValueError(
                f"'granularity' {self.granularity!r} removes nothing: write 'N:M', N below M."
            )
        for key in ("sparsity", "final_sparsity"):
            asked = getattr(self, key, None)
            if share is not None and asked is not None and abs(asked - share) > 1e-9:
                raise ValueError(
                    f"'granularity' {self.granularity!r} has a sparsity of {share:g}, {key!r} asks "
                    f"for {asked:g}; leave {key!r} out."
                )
        return self


class PatternRule(PruneRule, PatternKeys):
    """A sparsity for each layer, which an N:M pattern implies."""

    def settings(self) -> dict[str, Any]:
        """As in :meth:`Rule.settings`, with the sparsity that an N:M pattern implies."""
        implied = self.pattern_sparsity
        return super().settings() | ({} if implied is None else {"sparsity": implied})


class TotalKeys(BaseModel):
    """A sparsity of several layers together: their weights are ranked across them."""

    model_config = ConfigDict(defer_build=True)

    total_sparsity: Fraction | None = Field(
        None, description="Fraction of the weights of all these layers to remove."
    )
    max_sparsity_per_layer: Fraction | None = Field(
        None, description="With total_sparsity: the largest fraction to remove from any one layer."
    )

    @model_validator(mode="after")
    def _check_total(self) -> TotalKeys:
        cap, total = self.max_sparsity_per_layer, self.total_sparsity
        own = [
            key for key in ("sparsity", "final_sparsity") if getattr(self, key, None) is not None
        ]
        if total is not None and own and not getattr(self, "exclude", False):
            raise ValueError(
                f"expected either {own[0]!r} (per layer) or 'total_sparsity' (of all layers together), "
                "received both."
            )
        if cap is not None and total is None:
            raise ValueError(
                "'max_sparsity_per_layer' only limits 'total_sparsity', which is missing."
            )
        if cap is not None and total is not None and cap < total:
            raise ValueError(
                f"'total_sparsity' {total} cannot be reached under 'max_sparsity_per_layer' {cap}."
            )
        if getattr(self, "granularity", None) is not None and total is not None:
            raise ValueError("'granularity' goes with 'sparsity', not with 'total_sparsity'.")
        return self


class ChannelKeys(BaseModel):
    """Limits on how many channels are kept."""

    model_config = ConfigDict(defer_build=True)

    min_kept: Count | None = Field(
        None, description="Minimum number of channels to keep; 1 by default."
    )
    round_to: Count | None = Field(
        None, description="Keep a multiple of this many channels, which suits most hardware."
    )


class SparsityRule(PatternRule, ChannelKeys):
    """A sparsity for each layer: of single weights, of a pattern, or of channels."""

    @property
    def asked(self) -> float | None:
        """The sparsity, also if a pattern implies it."""
        return self.pattern_sparsity if self.sparsity is None else self.sparsity

    @model_validator(mode="after")
    def _check_sparsity(self) -> SparsityRule:
        if not self.exclude and self.asked is None:
            raise ValueError("'sparsity' is missing; expected a fraction in [0, 1).")
        return self


class ScheduledPruneRule(PruneRule, PatternKeys, TotalKeys, ChannelKeys):
    """How much to prune, and when."""

    initial_sparsity: Fraction = Field(0.0, description="Fraction removed at start_epoch.")
    final_sparsity: Fraction | None = Field(None, description="Fraction removed at end_epoch.")
    start_epoch: Epoch = Field(0, description="First epoch with pruning.")
    end_epoch: Epoch = Field(1, description="Epoch at which final_sparsity is reached.")
    frequency: Count = Field(1, description="Epochs between two mask updates.")

    @model_validator(mode="after")
    def _check_target(self) -> ScheduledPruneRule:
        if self.exclude:
            return self
        if self.sparsity is not None and self.final_sparsity is not None:
            raise ValueError("'sparsity' and 'final_sparsity' are the same key here; give one.")
        if self.target is None:
            raise ValueError("'final_sparsity' is missing; expected a fraction in [0, 1).")
        epochs = self.end_epoch - self.start_epoch
        if epochs < 0:
            raise ValueError(
                f"'end_epoch' {self.end_epoch} is before 'start_epoch' {self.start_epoch}."
            )
        if 0 < epochs < self.frequency:
            raise ValueError(
                f"'frequency' {self.frequency} is longer than the schedule of {epochs} epochs."
            )
        if self.target < self.initial_sparsity:
            key = "final_sparsity" if self.total_sparsity is None else "total_sparsity"
            raise ValueError(
                f"{key!r} {self.target} is below 'initial_sparsity' "
                f"{self.initial_sparsity}; sparsity can only grow."
            )
        return self

    @property
    def own_target(self) -> float | None:
        """The final sparsity of each layer, under either of its two names."""
        given = self.sparsity if self.final_sparsity is None else self.final_sparsity
        return self.pattern_sparsity if given is None else given

    @property
    def target(self) -> float | None:
        """The sparsity at the end of the schedule, of each layer or of all together."""
        return self.own_target if self.total_sparsity is None else self.total_sparsity

    def settings(self) -> dict[str, Any]:
        """As in :meth:`Rule.settings`, with a layer's own target under ``final_sparsity``."""
        settings = super().settings()
        settings.pop("sparsity", None)
        own = self.own_target
        return settings if own is None else settings | {"final_sparsity": own}


class BitsRule(Rule):
    """Which tensors of a layer to quantize, and to how many bits."""

    quant_types: Targets = Field(["weight"], description="Tensors to quantize.")
    quant_bits: Bits | Annotated[dict[QuantTarget, Bits], Field(min_length=1)] = Field(
        8, description="Bits, one number for all tensors or a dict."
    )

    @model_validator(mode="after")
    def _check_bits(self) -> BitsRule:
        if isinstance(self.quant_bits, dict):
            types = self.quant_types or list(self.quant_bits)
            missing = [target for target in types if target not in self.quant_bits]
            extra = [target for target in self.quant_bits if target not in types]
            if missing and not self.exclude:
                raise ValueError(
                    f"'quant_bits' has no entry for {missing}, which quant_types names."
                )
            if extra and not self.exclude:
                raise ValueError(
                    f"'quant_bits' has entries for {extra}, which quant_types does not name."
                )
        return self


class QuantRule(BitsRule):
    """All quantization keys, for algorithms that support them."""

    quant_types: Targets | None = Field(  # type: ignore[assignment]
        None,
        description="Tensors to quantize; by default those the layer needs to run on integers.",
    )
    quant_scheme: Scheme | dict[QuantTarget, Scheme] | None = Field(
        None, description="'symmetric' around zero (weights), or 'affine': fitted (activations)."
    )
    quant_dtype: Dtype | dict[QuantTarget, Dtype] | None = Field(
        None, description="'int' (weights) or 'uint' (activations)."
    )
    granularity: QuantGranularity | dict[QuantTarget, QuantGranularity] | None = Field(
        None, description="Which entries of a weight share a scale; per_channel by default."
    )
    group_size: Count | None = Field(
        None, description="How many inputs of a weight share a scale, with 'per_group'."
    )
    narrow_range: bool | dict[QuantTarget, bool] | None = Field(
        None,
        description="Do not use the lowest integer, e.g. -127 to 127; the default for symmetric weights.",
    )
    quant_start_step: Epoch | None = Field(
        None, description="Number of steps before quantization starts."
    )

    @model_validator(mode="after")
    def _check_granularity(self) -> QuantRule:
        if self.exclude:
            return self
        if isinstance(self.granularity, dict):
            for target in ("input", "output"):
                if self.granularity.get(target) not in (None, "per_tensor"):
                    raise ValueError(
                        f"'granularity' of {target!r} must be 'per_tensor': activations have one scale."
                    )
        grouped = self._of("granularity", "weight") == "per_group"
        if grouped != (self.group_size is not None):
            raise ValueError("'per_group' and 'group_size' belong together; give both or neither.")
        return self

    @model_validator(mode="after")
    def _check_levels(self) -> QuantRule:
        for target in ("weight", "input", "output"):
            is_signed = self._of("quant_dtype", target) == "int" or (
                target == "weight" and self._of("quant_dtype", target) is None
            )
            is_asked = self.quant_types is None or target in self.quant_types
            if not self.exclude and is_asked and is_signed and self._of("quant_bits", target) == 1:
                raise ValueError(
                    f"'quant_bits' of {target!r} is 1, which has no grid around zero; expected 2 or more, or "
                    "use BNNQuantizer or DoReFaQuantizer."
                )
        return self

    def _of(self, key: str, target: str) -> Any:
        value = getattr(self, key)
        return value.get(target) if isinstance(value, dict) else value
