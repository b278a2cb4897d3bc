"""repair: raise bits and restore channels where it matters, at the least cost, until a drop is met.

The given config list, which loses too much, is the most aggressive choice of every layer; milder choices
are a fraction of its sparsity, eight bits, and floating point. For a bound on the total score, the cheapest
choice within it is found exactly; the loosest bound at which the real metric is met is found by bisection.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError, nearest
from lilliput.files import make_folder
from lilliput.printing import shown
from lilliput.search.budget import Limit
from lilliput.search.result import Found
from lilliput.search.search import Search
from lilliput.search.solve import Choice, cheapest
from lilliput.search.task import Task, Trial

COSTS = ("latency", "bytes", "macs", "params")  # what is minimized
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of a sparsity


def repair(
    model: Any,
    config_list: Sequence[Mapping[str, Any]],
    *,
    drop: float,
    evaluate: Callable[[Any], Any],
    data: Iterable[Any],
    example_inputs: Any,
    folder: str | os.PathLike[str],
    cost: str = "latency",
    trials: int = 10,
    **others: Any,
) -> Found:
    """Make a config list milder where its layers hurt the metric, until it drops no more than allowed.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        The trained model before compression; it is not changed.
    config_list : list of dict
        The list that loses too much: rules with ``sparsity``, ``quant_bits`` or both, such as
        :attr:`Found.config_list <lilliput.search.result.Found>`.
    drop : float
        Largest acceptable drop of the metric.
    evaluate, data, example_inputs
        See :class:`~lilliput.search.search.Search`.
    folder : path
        Folder for the repaired network and the journal.
    cost : str
        The cost to minimize: ``"latency"``, ``"bytes"``, ``"macs"`` or ``"params"``.
    trials : int
        The largest number of config lists to evaluate, 2 or more.
    **others
        Other arguments of :class:`~lilliput.search.search.Search`.

    Returns
    -------
    Found
        :attr:`Found.is_met <lilliput.search.result.Found>` tells whether the written file meets the drop when
        it is executed; if not, a note of the receipt says so.

    Examples
    --------
    >>> import tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> wanted = model(x).argmax(1)
    >>> def agreement(model):
    ...     return float((model(x).argmax(1) == wanted).float().mean())
    >>> rules = [{"op_types": ["Linear"], "quant_bits": 2}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = repair(model, rules, drop=0.1, evaluate=agreement, data=[x], example_inputs=x,
    ...                    folder=folder, cost="bytes")
    >>> found.receipt.after.metric >= 0.9
    True
    """
    if cost not in COSTS:
        raise ConfigError(
            f"cost: received {cost!r}, expected {', '.join(COSTS)}.{nearest(cost, COSTS)}"
        )
    if isinstance(drop, bool) or not isinstance(drop, (int, float)) or not 0 <= drop < math.inf:
        raise ConfigError(f"drop: received {drop!r}, expected a number from 0.")
    if trials == 1:
        raise ConfigError(
            "trials: received 1, expected 2 or more: the given config list and the least aggressive one."
        )
    search = Search(
        model,
        milder(config_list),
        budget={cost: 0.5, "drop": drop},
        evaluate=evaluate,
        data=data,
        example_inputs=example_inputs,
        trials=trials,
        **others,
    )
    if search.space.narrowed:
        raise ConfigError(
            f"config_list: the channels of {search.space.narrowed[0]} are removed together, but their rules "
            "have different sparsities; use one sparsity."
        )
    search.limits[cost] = Limit(cost, math.inf, False)  # measured without a limit
    place: Path = make_folder(folder)
    task = search.start(place)
    return search.finish(task, _find(task, cost, task.baseline - drop), place)


def milder(config_list: Any) -> list[dict[str, Any]]:
    """Return a config list with milder alternatives for every value.

    Examples
    --------
    >>> milder([{"op_names": ["conv"], "sparsity": 0.4, "quant_bits": 4}])[0]["sparsity"]
    {'choose': [0, 0.1, 0.2, 0.3, 0.4]}
    """
    if not isinstance(config_list, Sequence) or isinstance(config_list, str) or not config_list:
        raise ConfigError("config_list: expected a list of rules, such as that of a search.")
    for i, rule in enumerate(config_list):
        if not isinstance(rule, Mapping):
            raise ConfigError(f"config_list: rule {i}: received {shown(rule)}, expected a dict.")
    return [dict(rule) | _choices(rule) for rule in config_list]


def _choices(rule: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sparsity: Any = rule.get("sparsity")
    bits: Any = rule.get("quant_bits")
    # Values that are not valid numbers are kept: the search reports what is wrong with them.
    if isinstance(sparsity, (int, float)) and not isinstance(sparsity, bool) and 0 < sparsity < 1:
        shares = [0, *(round(float(sparsity) * share, 6) for share in _SHARES[:-1]), sparsity]
        found["sparsity"] = {"choose": shares}
    eight: Any = None
    if _is_whole(bits):
        eight = max(bits, 8)
    elif isinstance(bits, Mapping) and bits and all(map(_is_whole, bits.values())):
        eight = {k: max(b, 8) for k, b in bits.items()}
    if eight is not None:
        found["quant_bits"] = {"choose": [bits, None] if eight == bits else [bits, eight, None]}
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _find(task: Task, cost: str, least: float) -> Trial:
    """Return the cheapest trial that meets the metric, by bisecting the allowed score."""
    strongest: Choice = tuple(n - 1 for n in task.space.sizes)
    mildest: Choice = (0,) * len(strongest)
    given = task.trial(strongest)
    if given.metric >= least:
        return given
    best = task.trial(mildest)
    if best.metric < least:
        raise AlgorithmError(
            f"even the least aggressive choices lose {task.baseline - best.metric:.4g}, more than the drop "
            f"of {task.baseline - least:.4g}."
        )
    low, high = task.score(mildest), task.score(strongest)
    while not task.is_exhausted and high > low * 1.01:
        bound = math.sqrt(max(low, 1e-6 * high) * high)
        choice = cheapest(task.scores, task.costs, cost, bound)
        trial = task.trial(choice)
        if trial.metric >= least:
            best = min(best, trial, key=lambda t: (t.costs[cost], -t.metric))
            low = bound
        else:
            high = bound
    return best
