"""Find algorithms by name, as files and command lines name them."""

from __future__ import annotations

from typing import Any

import lilliput.pruning
import lilliput.quantization  # noqa: F401  (imported for their registrations)
from lilliput.config.parse import schema
from lilliput.registry import pruners, quantizers


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
    registry = quantizers if name in quantizers else pruners
    return schema(registry.get(name).rule)


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
