"""What a shrinking gave: the model, how it was reached, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lilliput.frameworks.torch.attributes import Attributes
from lilliput.graph.cuts import Cut
from lilliput.graph.groups import count
from lilliput.report.receipt import Receipt
from lilliput.tables import html_table

Kind = Literal["module", "mixed", "graph"]

TIED = (
    "takes inputs of the example's sizes only, the batch included: what was captured depends on them; "
    "give example inputs of the sizes that it will be used with"
)
_MOST_WIDTHS = 6  # in one line


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything needed to shrink a fresh copy of the same model in the same way.

    Parameters
    ----------
    cuts : tuple of Cut
        Which indices of which tensors stay.
    attributes : dict
        Sizes that modules remember, by module path and name.
    graphs : tuple of str
        Paths of modules that run as captured graphs; an empty path is the whole model.
    any_size : bool
        Whether these graphs take other batches than that of the example inputs.
    """

    cuts: tuple[Cut, ...]
    attributes: Attributes
    graphs: tuple[str, ...] = ()
    any_size: bool = False

    def __repr__(self) -> str:
        return f"Plan({self.kind}, {len(self.cuts)} cuts, {len(self.attributes)} attributes)"

    @property
    def kind(self) -> Kind:
        """``module``: the user's own; ``mixed``: parts of it are graphs; ``graph``: all of it is."""
        if not self.graphs:
            return "module"
        return "graph" if "" in self.graphs else "mixed"


@dataclass(frozen=True, eq=False)
class SpeedupResult:
    """A shrunk model with its report; ``print`` it.

    Attributes
    ----------
    model : torch.nn.Module
        The shrunk model: the one that was given, changed in place, unless ``kind`` is ``'graph'``.
    kind : str
        ``'module'``, ``'mixed'`` (some submodules run as captured graphs) or ``'graph'``.
    error : float
        Largest relative difference to the masked model's output, in double precision if possible.
    parameters, macs : tuple of int
        Trained weights, and multiplications of one call on the example inputs; before and after.
    removed : dict
        Per group: units removed and units there were.
    remembered : dict
        Widths that modules remember without computing with them (``num_features``): before and after.
    notes : tuple of str
        What a reader should know.
    receipt : Receipt
        Before → after, with the time that both take here.
    """

    model: nn.Module
    plan: Plan
    error: float
    parameters: tuple[int, int]
    macs: tuple[int, int]
    removed: dict[str, tuple[int, int]]
    seconds: float
    remembered: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    source: dict[str, list[int]]  # names and shapes of the tensors there were
    example_inputs: Any
    receipt: Receipt

    @property
    def kind(self) -> Kind:
        """How the model runs."""
        return self.plan.kind

    def save(self, folder: str | Path, *, compact: bool = False) -> None:
        """Write the model as it is now into a folder, for :func:`lilliput.torch.load`.

        With ``compact``, it is one file, as small as possible; see :func:`lilliput.torch.save`.
        """
        from lilliput.speedup.saved import save_shrunk, save_shrunk_compact

        write = save_shrunk_compact if compact else save_shrunk
        write(self.model, self.plan, self.source, self.example_inputs, folder)

    def __str__(self) -> str:
        is_tied = TIED in self.notes
        lines = [f"{name:<11} {text}" for name, text in self._rows()]
        lines += [f"note        {note}" for note in self.notes if note != TIED]
        return "\n".join([*([f"limited     {TIED}"] if is_tied else []), *lines])

    def __repr__(self) -> str:
        before, after = self.parameters
        return (
            f"SpeedupResult({self.kind}, {before:,} → {after:,} parameters, error {self.error:.0e})"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return html_table(self._rows(), title="Cut and checked", notes=self.notes)

    def _rows(self) -> list[tuple[str, str]]:
        words = {
            "module": "your own module",
            "mixed": f"your own module, with {', '.join(self.plan.graphs)} as captured graphs",
            "graph": "a captured graph",
        }
        gone, units = (sum(pair[i] for pair in self.removed.values()) for i in (0, 1))
        groups = count(len(self.removed), "channel group")
        rows = [
            ("removed", f"{gone:,} of {units:,} units in {groups}"),
            ("parameters", _arrow(self.parameters)),
            ("MACs", f"{_arrow(self.macs)} for the example inputs"),
            ("runs as", words[self.kind]),
            ("checked", f"equal to the masked model (relative error {self.error:.0e})"),
        ]
        widths = [f"{name} {old} → {new}" for name, (old, new) in self.remembered.items()]
        if widths:
            more = [f"{len(widths) - _MOST_WIDTHS} more"] if len(widths) > _MOST_WIDTHS else []
            rows.append(("widths", ", ".join([*widths[:_MOST_WIDTHS], *more])))
        return rows


def make_receipt(
    plain: nn.Module, shrunk: nn.Module, inputs: Any, macs: tuple[int, int], error: float
) -> Receipt:
    """Time the model before and after, for a moment, and put that beside the counts."""
    from lilliput.frameworks.torch.capture import fresh, shared_copy
    from lilliput.frameworks.torch.discover import unwrapped
    from lilliput.frameworks.torch.measure import count_stored, measured
    from lilliput.report.measure import figures_of, time_calls

    # Copies: code may count its calls, or write to its inputs.
    models, inputs = (plain, shared_copy(unwrapped(shrunk))), fresh(inputs)
    batch = measured.batch(plain, inputs)
    times = time_calls([measured.caller(model, inputs) for model in models], runs=20, seconds=0.1)
    before, after = (
        figures_of(
            name,
            f"{measured.runtime()}, batch {batch}",
            {**count_stored(models[i]), "macs": macs[i] // batch},
            times[i],
        )
        for i, name in enumerate(("before", "after"))
    )
    return Receipt(
        before, after, max_difference=error, difference_to="the masked model, of its largest"
    )


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} → {after:,} ({after / max(before, 1):.0%})"
