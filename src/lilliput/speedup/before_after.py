"""Time a model before and after the cut, and combine the latencies with the counts."""

from __future__ import annotations

from collections.abc import Callable

from lilliput.errors import LilliputError, UnsupportedModelError
from lilliput.frameworks.shrinking import Shrunk
from lilliput.measure.receipt import Receipt
from lilliput.measure.timing import figures_of, how_to_measure_model, time_calls

_RUNS, _SECONDS = 20, 0.05  # at most, for timing a model
_FEWEST = 4  # calls at least, for two readings


def receipt_of_cut(made: Shrunk, is_now: bool) -> Callable[[], Receipt]:
    """Return a function that returns the receipt, which is measured now or when it is first called.

    If it is measured now, the function does not keep the larger model alive.
    """
    if not is_now:
        return lambda: _measure(made)
    receipt = _measure_now(made)
    return lambda: receipt


def _measure_now(made: Shrunk) -> Receipt:
    """Measure the receipt; explain the failure if a model that passed its check does not run."""
    try:
        return _measure(made)
    except LilliputError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(made.model).__name__} passed its check and failed when it was timed ({error}), so what "
            "it computes depends on chance or on earlier calls. It has been cut: start again from the "
            "original, and make its forward compute the same in each call in evaluation."
        ) from error


def _measure(made: Shrunk) -> Receipt:
    """Time the model before and after, briefly, and combine the latencies with the counts."""
    how = how_to_measure_model(made.before)
    models = (made.before, how.untouched(made.model))
    inputs = how.fresh(made.inputs)
    batch = how.batch(made.before, inputs)
    calls = [how.caller(model, inputs) for model in models]
    times = time_calls(calls, _RUNS, _SECONDS, warm_up=1, fewest=_FEWEST)
    before, after = (
        figures_of(
            name,
            f"{how.runtime()}, batch {batch}",
            {**how.stored(models[i]), "macs": made.macs[i] // batch},
            times[i],
        )
        for i, name in enumerate(("before", "after"))
    )
    return Receipt(
        before,
        after,
        max_difference=made.error,
        difference_to="the masked model, relative to its largest output",
    )
