"""The config rule of channel pruners."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from lilliput.config.spec import ChannelKeys, Fraction, PruneRule

_MOST = 2**53  # floats represent all integers up to here
_TARGETS = ("sparsity", "total_sparsity", "max_macs", "max_params")


def _check_budget(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_share, is_number = 0 < value < 1, 1 < value < _MOST and value == int(value)
        if not is_share and not is_number:
            raise ValueError("expected a fraction in (0, 1), or an integer from 2 to 2**53.")
    return value


Budget = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_check_budget)]


class ChannelRule(PruneRule, ChannelKeys):
    """A share of each layer's channels, a share of all their channels together, or a budget."""

    sparsity: Fraction | None = Field(
        None, description="Fraction of each layer's channels to remove."
    )
    total_sparsity: Fraction | None = Field(
        None, description="Fraction of the channels of all these layers to remove."
    )
    max_macs: Budget | None = Field(
        None, description="MACs to keep at most: a fraction of the model's, or a number."
    )
    max_params: Budget | None = Field(
        None, description="Parameters to keep at most: a fraction of the model's, or a number."
    )
    max_sparsity_per_layer: Fraction | None = Field(
        None,
        description="Largest fraction to remove from any one layer, for targets that span layers.",
    )

    @model_validator(mode="after")
    def _check_target(self) -> ChannelRule:
        given = [key for key in _TARGETS if getattr(self, key) is not None]
        if not self.exclude and len(given) != 1:
            listed = ", ".join(repr(key) for key in _TARGETS)
            received = " and ".join(repr(key) for key in given) or "none"
            raise ValueError(f"expected exactly one of {listed}; received {received}.")
        cap, total = self.max_sparsity_per_layer, self.total_sparsity
        if cap is not None and self.sparsity is not None:
            raise ValueError(
                "'max_sparsity_per_layer' limits only targets that span layers, not 'sparsity'."
            )
        if cap is not None and total is not None and cap < total:
            raise ValueError(
                f"'total_sparsity' {total} cannot be reached under 'max_sparsity_per_layer' {cap}."
            )
        return self
