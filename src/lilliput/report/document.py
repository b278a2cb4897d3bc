"""The report as data: one JSON file with a published schema, and one HTML page made from it.

>>> report = Report(title="A small network", notes=["nothing was measured"])
>>> Report.model_validate_json(report.to_json()) == report
True
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
)

from lilliput.errors import LilliputError, StateError
from lilliput.files import write_atomically

SCHEMA_VERSION = 1
_LARGEST_FILE = 256 * 2**20
_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def _readable(value: Any) -> Any:
    """Replace characters that a text file cannot contain: surrogates and zero bytes."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


Text = Annotated[str, BeforeValidator(_readable)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Bins = Annotated[list[Count], Field(min_length=1)]
Target = Literal["weight", "input", "output"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LayerRow(_Data):
    """One layer, before and after; unknown values are omitted."""

    name: Text
    type: Text = ""
    shape: list[int] = []
    shape_before: list[int] | None = None
    parameters: Count = 0
    parameters_before: Count | None = None
    nonzeros: Count = 0
    macs: Count | None = Field(None, description="Multiply-accumulates for one example.")
    macs_before: Count | None = None
    bits: int | None = Field(None, description="Bits of the weight; omitted in floating point.")
    sqnr: dict[Target, float] = Field(
        {}, description="Signal-to-noise ratio of each quantized tensor, in dB."
    )
    ms: float | None = Field(None, description="Milliseconds of one call, excluding nested layers.")
    ms_before: float | None = None
    kernel: Text = Field("", description="The kernel that the runtime executes.")

    @property
    def kept(self) -> float | None:
        """The fraction of the original parameters that are kept and non-zero."""
        whole = self.parameters if self.parameters_before is None else self.parameters_before
        return min(self.nonzeros / whole, 1.0) if whole else None

    @property
    def worst_sqnr(self) -> float | None:
        """The signal-to-noise ratio of its worst tensor."""
        return min(self.sqnr.values(), default=None)

    @property
    def is_minor(self) -> bool:
        """Whether it is a norm or similar: no matrix, no multiplications."""
        return len(self.shape_before or self.shape) < 2 and not (self.macs or self.macs_before)


class Curve(_Data):
    """The metric of the model with one layer pruned more and more."""

    layer: Text
    baseline: float | None = None
    points: list[tuple[Share, float]] = Field(description="Sparsity and metric.")


class HistogramPair(_Data):
    """The distribution of a tensor's values before and after, over equal bins from ``low`` to ``high``.

    Zeros are not in the bins of weights: ``zeros`` says how many there are.
    """

    layer: Text
    target: Target
    low: float
    high: float
    before: Bins | None = Field(None, description="Share of each bin, in tenths of percent.")
    after: Bins | None = None
    zeros_before: Share | None = None
    zeros: Share | None = None


class TriedPoint(_Data):
    """One model that was tried: its cost and its metric."""

    name: Text
    bytes: float | None = None
    macs: float | None = None
    p50: float | None = None
    metric: float | None = None
    sparsity: float | None = None


class ChannelGroup(_Data):
    """Channels that can only be removed together or, with a ``reason``, that are kept."""

    name: Text
    size: Count
    rows: Count | None = Field(
        None, description="Number of rows that must keep the same number of units, if any."
    )
    makes: list[Text] = Field([], description="Layers that produce the channels.")
    reads: list[Text] = []
    passes: list[Text] = Field([], description="Layers that scale or shift them.")
    reason: Text = Field("", description="Why they are kept; empty if they can be removed.")


class Report(_Data):
    """Everything known about a compressed model; ``save`` it as a page, ``load`` it from JSON.

    Sections without data are omitted from the page.
    """

    schema_version: Literal[1] = 1
    title: Text = "Compression report"
    created: Text = Field("", description="When, as ISO 8601.")
    receipt: dict[str, JsonValue] | None = Field(None, description="What Receipt.to_dict() gives.")
    layers: list[LayerRow] = []
    sensitivity: list[Curve] = []
    histograms: list[HistogramPair] = []
    points: list[TriedPoint] = []
    groups: list[ChannelGroup] = []
    recipe: Text = ""
    environment: dict[str, JsonValue] = {}
    reproduce: Text = ""
    notes: list[Text] = []

    @field_validator("receipt")
    @classmethod
    def _is_receipt(cls, value: Any) -> Any:
        if value is not None:
            read_receipt(value)
        return value

    def to_json(self) -> str:
        """Return the report as JSON; unknown values are omitted."""
        data = self.model_dump(mode="json", exclude_none=True)
        data["layers"] = [
            {key: value for key, value in row.items() if value not in ("", {}, [])}
            for row in data["layers"]
        ]
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    def to_html(self) -> str:
        """Return the page: a single file with drawings and data inline."""
        from lilliput.report.page.render import render

        return render(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page, and next to it the same data as JSON: ``report.html`` and ``report.json``."""
        page = Path(path)
        if page.suffix.lower() not in (".html", ".htm"):
            page = page.with_name(f"{page.name}.html")
        html, data = self.to_html().encode("utf-8", "replace"), self.to_json().encode()
        write_atomically(page.with_suffix(".json"), data)
        write_atomically(page, html)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read the JSON file that :meth:`save` wrote.

        Raises
        ------
        StateError
            If the file is damaged, is something else, or comes from a newer version.
        """
        place = Path(path)
        expected = "expected the .json file that Report.save() wrote next to the page"
        try:
            if place.stat().st_size > _LARGEST_FILE:
                raise StateError(f"{place}: larger than any report; {expected}.")
            data = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(f"{place}: no readable report ({error}); {expected}.") from error
        if not isinstance(data, dict) or "schema_version" not in data:
            raise StateError(f"{place}: not a report, it has no schema_version; {expected}.")
        version = data["schema_version"]
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise StateError(
                f"{place}: a report of schema_version {str(version)[:40]}, this version reads "
                f"{SCHEMA_VERSION}; create it again, or use the version of Lilliput that wrote it."
            )
        try:
            return cls.model_validate(data)
        except (ValidationError, RecursionError) as error:
            raise StateError(
                f"{place}: a damaged report: {_first_faults(error)}; {expected}."
            ) from error

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of the file, as published in ``docs/report.schema.json``."""
        return {"$schema": _SCHEMA, **cls.model_json_schema()}


def read_receipt(data: Any) -> Any:
    """Return the receipt of a report as an object, or raise ValueError."""
    from lilliput.measure.receipt import Receipt

    try:
        receipt = Receipt.from_dict(data)
        texts = (receipt.metric_name, *receipt.notes)
        texts += tuple(
            x for side in (receipt.before, receipt.after) for x in (side.name, side.runtime)
        )
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("names and notes are texts")
        receipt.rows()
        str(receipt.verdict)
    except (LilliputError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"not a receipt ({error})") from error
    return receipt


def now() -> str:
    """Return the time, to the second, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _first_faults(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "nested too deeply"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in faults[:3]]
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return "; ".join(shown) + more
