"""Run trials on many machines, with any executor of PEP 3148: concurrent.futures, Dask, submitit.

A worker creates one network and evaluates it; the result is a number, and results are used in the order
of submission. So a search ends with the same config list on one machine and on many. A trial whose worker
died is repeated locally. Timing is always local, because other machines have other latencies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from lilliput.errors import ConfigError, LilliputError
from lilliput.extras import require
from lilliput.printing import shown
from lilliput.search.candidate import Order, evaluated_model

log = logging.getLogger("lilliput")


def check_executor(executor: Any) -> None:
    """Raise unless the object has a ``submit`` method."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigError(
            f"executor: received {type(executor).__name__}, expected an executor with submit(), such as "
            "concurrent.futures.ProcessPoolExecutor()."
        )


def metric_of(order: Order, evaluate: Callable[[Any], Any], what: str) -> float:
    """Create a network and evaluate it, in a worker."""
    return evaluated_model(evaluate, order.make().model, what)


def submitted(executor: Any, order: Order, evaluate: Callable[[Any], Any], what: str) -> Any:
    """Return the future of a metric, or None if the executor no longer accepts tasks."""
    try:
        return executor.submit(metric_of, order, evaluate, what)
    except Exception as error:  # a pool that has lost a worker, was shut down, or is out of reach
        log.warning("the executor refused a trial (%s: %s).", type(error).__name__, error)
        return None


def outcome(future: Any, order: Order, evaluate: Callable[[Any], Any], what: str) -> float:
    """Return a metric; compute it here if the worker was lost."""
    try:
        if future is not None:
            metric = future.result()
            if isinstance(metric, float) and math.isfinite(metric):
                return metric
            log.warning(
                "a worker returned %s instead of a metric; its trial is repeated.", shown(metric)
            )
    except LilliputError:  # of the trial itself
        raise
    except Exception as error:  # every executor raises its own errors for a lost worker
        log.warning("a worker was lost (%s); its trial is repeated.", type(error).__name__)
    return metric_of(order, evaluate, what)


class RayExecutor(Executor):
    """Tasks of Ray as an executor of PEP 3148; ``ray.init`` selects the cluster.

    Ray itself restarts a task whose worker died.

    Parameters
    ----------
    **options
        Of ``ray.remote``, for every task: ``num_cpus=2``, ``num_gpus=1``, ``runtime_env={...}``.
    """

    def __init__(self, **options: Any) -> None:
        self._ray = require("ray", "RayExecutor needs pip install 'lilliput[ray]'")
        self._options = {"num_cpus": 1, **options}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a task, and return the future of its result."""
        task = self._ray.remote(**self._options)(fn)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future
