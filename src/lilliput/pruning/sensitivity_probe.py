"""Prune temporarily, measure, and restore everything bit by bit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.frameworks import backend_of
from lilliput.ops.namespace import namespace
from lilliput.progress import quiet
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import pruners

log = logging.getLogger("lilliput")

# The keys of a rule for amount and layers, which change with each probe.
_REPLACED = ("op_types", "op_names", "sparsity", "total_sparsity", "max_sparsity_per_layer")

Masks = Mapping[str, Mapping[str, Any]]  # layer name -> mask name -> mask


def one_shot(name: str) -> Any:
    """Return the one-shot pruner with this name."""
    algorithm = pruners.get(name)
    if not issubclass(algorithm, OneShotPruner):
        raise ConfigError(
            f"{name!r} is {algorithm.__name__}, which does not prune to a given sparsity in one shot; "
            "expected a one-shot pruner such as 'level'."
        )
    return algorithm


class Probe:
    """Prune layers of a model temporarily with a one-shot pruner.

    Parameters
    ----------
    algorithm : str
        Name of the pruner.
    model : object
        The model.
    config_list : list of dict, optional
        Which layers may be pruned, and their settings except the sparsity; by default those that the
        pruner selects by default.
    example_inputs : optional
        Passed to the pruner if given.
    """

    def __init__(
        self, algorithm: str, model: Any, config_list: Any = None, example_inputs: Any = None
    ) -> None:
        self.algorithm = one_shot(algorithm)
        self.model = model
        self._has_spoken = False
        rules = [{"op_types": ["default"], "sparsity": 0.5}] if config_list is None else config_list
        given = {} if example_inputs is None else {"example_inputs": example_inputs}
        pruner = self.algorithm(model, rules, **given)
        if not pruner.masker.is_ready():
            raise ConfigError(
                f"{algorithm!r} has to observe training before it can prune; expected a pruner that uses "
                "only the weights, such as 'level' or 'l1'."
            )
        self.selection = pruner.selection
        self.by_channel = bool(pruner.removes_channels)
        self.companions = [wrapper.layer_info for wrapper in pruner.companions()]
        # The channel layout is the same each time.
        is_traced = example_inputs is not None and pruner.layout is not None
        self.layout = pruner.layout if is_traced else None
        self._options = {"groups": self.layout.groups} if self.layout is not None else {}
        self._settings = {
            layer.name: {k: x for k, x in layer.config.items() if k not in _REPLACED}
            for layer in self.selection.chosen
        }

    @contextmanager
    def pruned(self, sparsities: Mapping[str, float], masks: Masks) -> Iterator[Any]:
        """Prune within the context, starting from ``masks``; yield the pruner."""
        rules = [
            {**self._settings[name], "op_names": [name], "sparsity": sparsity}
            for name, sparsity in sparsities.items()
        ]
        snapshot = backend_of(self.model).remember(self.model)
        with quiet(self._has_spoken):
            pruner = self.algorithm(self.model, rules, **self._options)
        for wrapper in pruner._every_wrapper():
            held = masks.get(wrapper.name, {})
            # A companion weight is wrapped without its bias.
            has_bias = wrapper.bias is not None
            wrapper.set_masks({k: x for k, x in held.items() if has_bias or k != "bias_mask"})
        try:
            with quiet(self._has_spoken):
                pruner.compress()
            self._has_spoken = True
            yield pruner
        finally:
            try:
                if pruner.is_wrapped:
                    with quiet():
                        pruner.strip()
            finally:
                snapshot.restore()


def masks_of(pruner: Any) -> dict[str, dict[str, Any]]:
    """Return copies of the masks of a pruner."""
    found = {}
    for wrapper in pruner._every_wrapper():
        held = {name: getattr(wrapper, name) for name in ("weight_mask", "bias_mask")}
        found[wrapper.name] = {
            key: namespace(mask).to_float(mask != 0, like=mask)  # a copy
            for key, mask in held.items()
            if mask is not None
        }
    return found


def measure(
    function: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """Call an evaluator and return its metric as a float."""
    metric = call_with_model(function, model, args, kwargs)
    try:
        return float(metric.item() if hasattr(metric, "item") else metric)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AlgorithmError(
            f"the evaluator {name_of(function)} returned {metric!r}, expected a number such as an accuracy."
        ) from error


def measure_and_restore(
    function: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """As :func:`measure`, undoing the evaluator's changes to buffers and modes."""
    snapshot = backend_of(model).remember(model)
    try:
        return measure(function, model, args, kwargs)
    finally:
        snapshot.restore()


def name_of(function: Any) -> str | None:
    """Return the name of a function, None for None."""
    named = getattr(function, "__qualname__", type(function).__name__)
    return None if function is None else str(named)


def call_with_model(
    function: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a user's function with the model first.

    If the model is among the arguments, as in NNI (``val_args=[model]``), or the function has
    no parameter for it, the arguments are passed unchanged.
    """
    is_there = any(x is model for x in (*args, *kwargs.values()))
    if is_there or not accepts(function, model, *args, **kwargs):
        return function(*args, **kwargs)
    return function(model, *args, **kwargs)


def accepts(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called with these arguments.

    Examples
    --------
    >>> accepts(lambda x: x, 1), accepts(lambda: 0, 1)
    (True, False)
    """
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
