"""Find algorithms by the names used in files and command lines."""

from __future__ import annotations

from typing import Any

from lilliput.config.parse import schema
from lilliput.registry import REGISTRIES, find_algorithm, pruners, quantizers


def pruner(name: str) -> Any:
    """Return a pruner class by name or alias.

    Examples
    --------
    >>> pruner("agp").__name__, pruner("LevelPruner").__name__
    ('AGPPruner', 'LevelPruner')
    """
    return pruners.get(name)


def quantizer(name: str) -> Any:
    """Return a quantizer class by name or alias."""
    return quantizers.get(name)


def config_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of an algorithm's config list, for editors and validators.

    Examples
    --------
    >>> sorted(config_schema("naive")["items"]["properties"])[:3]
    ['exclude', 'op_names', 'op_types']
    """
    return schema(find_algorithm(name).rule)


def list_pruners(pattern: str = "*") -> list[str]:
    """Return the names of the pruners that match a glob.

    Examples
    --------
    >>> list_pruners("lev*")
    ['level']
    """
    return pruners.names(pattern)


def list_quantizers(pattern: str = "*") -> list[str]:
    """Return the names of the quantizers that match a glob."""
    return quantizers.names(pattern)


def no_such_name(module: str, name: str) -> AttributeError:
    """Return the error for a missing public name, with the current name of an algorithm of NNI.

    Examples
    --------
    >>> print(no_such_name("lilliput.torch", "QAT_Quantizer"))
    module 'lilliput.torch' has no attribute 'QAT_Quantizer': it is QATQuantizer today; NNI's name still \
works in programs run with python -m lilliput.compat.nni.
    """
    text = f"module {module!r} has no attribute {name!r}"
    for registry in REGISTRIES:
        if name[:1].isupper() and name in registry:
            today = registry.get(name).__name__
            return AttributeError(
                f"{text}: it is {today} today; NNI's name still works in programs run with "
                "python -m lilliput.compat.nni."
            )
    return AttributeError(text)
