"""The algorithm of a step, and the arguments it takes."""

from __future__ import annotations

import inspect
from typing import Any

from lilliput.registry import factorizers, pruners, quantizers

# Arguments that the run passes itself, and those that only code can pass.
OURS = ("self", "model", "config_list", "optimizer", "example_inputs", "groups")
_FOR_CODE = ("masker_type", "options")
_REGISTRIES = {
    "prune": pruners,
    "analyze": pruners,
    "quantize": quantizers,
    "factorize": factorizers,
}
NAMING = tuple(_REGISTRIES)  # verbs of steps that name an algorithm


def algorithm_of(verb: str, name: str) -> Any:
    """Return the class of the pruner, quantizer or factorizer that a step with this verb names.

    Examples
    --------
    >>> algorithm_of("prune", "agp").__name__
    'AGPPruner'
    """
    return _REGISTRIES[verb].get(name)


def arguments_of(cls: Any) -> list[str]:
    """Return the arguments of an algorithm, including those of base classes."""
    names: list[str] = []
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base.__init__).parameters.values()
        names += [x.name for x in parameters if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)]
        if not any(x.kind is x.VAR_KEYWORD for x in parameters):
            break
    return list(dict.fromkeys(names))


def make_compressor(step: Any, model: Any, inputs: Any) -> Any:
    """Return the compressor of a prune or quantize step, bound to a model that is only read.

    Parameters
    ----------
    step : PruneStep, QuantizeStep or CompressorEntry
        The step.
    model, inputs : object
        The model and its inputs.
    """
    name = step.algorithm if hasattr(step, "algorithm") else getattr(step, step.verb)
    cls = algorithm_of(step.verb, name)
    extras = {"example_inputs": inputs} if "example_inputs" in arguments_of(cls) else {}
    return cls(model, step.config, **extras, **step.options)


def options_of(cls: Any) -> list[str]:
    """Return the arguments that are allowed as options of a step.

    Examples
    --------
    >>> options_of(algorithm_of("prune", "linear"))
    ['pruning_algorithm', 'pruning_params']
    """
    return [name for name in arguments_of(cls) if name not in (*OURS, *_FOR_CODE)]
