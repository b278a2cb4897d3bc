"""Read the arguments of NNI's constructors, which changed between versions."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lilliput.errors import ConfigError

Form = inspect.Signature


class Unknown:
    """An argument whose value is only known at run time: it fits any parameter, and supports arithmetic."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return another unknown."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __sub__(self, other: Any) -> Any:
        return self

    __add__ = __mul__ = __radd__ = __rmul__ = __rsub__ = __sub__


def _is_trainer(value: Any) -> bool:
    return callable(value) and not hasattr(value, "step") and not isinstance(value, type)


# What distinguishes two forms that both accept an argument.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "optimizer": lambda x: hasattr(x, "step"),
    "traced_optimizer": lambda x: hasattr(x, "step"),
    "trainer": _is_trainer,
    "criterion": callable,
    "evaluator": lambda x: hasattr(x, "train") and hasattr(x, "optimizer"),
    "evaluator()": lambda x: callable(x) or hasattr(x, "train"),
    "activation": lambda x: isinstance(x, str),
    "pruning_algorithm": lambda x: isinstance(x, str),
    "mode": lambda x: isinstance(x, str),
    "dependency_aware": lambda x: isinstance(x, bool),
    "global_sort": lambda x: isinstance(x, bool),
    "scale": lambda x: isinstance(x, (int, float)) and not isinstance(x, bool),
    **{
        name: lambda x: isinstance(x, int) and not isinstance(x, bool)
        for name in (
            *("statistics_batch_num", "sparsifying_training_batches", "training_batches"),
            *("training_steps", "sparsifying_training_epochs", "training_epochs"),
            *("num_iterations", "total_iteration", "interval_steps", "total_times"),
            *("iterations", "epochs_per_iteration"),
        )
    },
}


def form(text: str) -> Form:
    """Return a constructor's form from its parameters; the default is None if not given.

    ``evaluator()`` is an evaluator that may also be a function, as before 2.9.

    Examples
    --------
    >>> form("model, config_list, statistics_batch_num=1")
    <Signature (model=None, config_list=None, statistics_batch_num=1)>
    """
    parameters = []
    for part in text.split(","):
        name, _, default = part.strip().partition("=")
        value = ast.literal_eval(default) if default else None
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        plain = inspect.Parameter(name.removesuffix("()"), kind, default=value)
        parameters.append(plain.replace(annotation=name) if name != plain.name else plain)
    return inspect.Signature(parameters)


def read_arguments(
    title: str,
    forms: Sequence[Form],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    with_defaults: bool = True,
) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of the form unless disabled."""
    for candidate in forms:
        try:
            bound = candidate.bind(*args, **kwargs)
        except TypeError:
            continue
        given = bound.arguments.items()
        if all(value is None or _fits(candidate.parameters[k], value) for k, value in given):
            if with_defaults:
                bound.apply_defaults()
            return dict(bound.arguments)
    kinds = ("…" if isinstance(x, Unknown) else type(x).__name__ for x in args)
    received = ", ".join([*kinds, *(f"{key}=…" for key in kwargs)])
    listed = " or ".join(f"({', '.join(candidate.parameters)})" for candidate in forms)
    raise ConfigError(f"{title}: received ({received}), expected {listed}.")


def _fits(parameter: inspect.Parameter, value: Any) -> bool:
    name = parameter.name if parameter.annotation is parameter.empty else parameter.annotation
    return isinstance(value, Unknown) or name not in _KINDS or bool(_KINDS[name](value))
