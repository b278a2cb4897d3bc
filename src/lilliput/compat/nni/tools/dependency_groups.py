"""v3's ``auto_set_denpendency_group_ids``: which layers have to lose the same channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from lilliput.compat.nni.config.keys import NEW_SELECTORS
from lilliput.config.parse import parse_rules
from lilliput.config.select import select
from lilliput.config.spec import Rule
from lilliput.frameworks import backend_of
from lilliput.speedup.channels import channel_groups


def auto_set_denpendency_group_ids(
    model: Any, config_list: list[dict[str, Any]], dummy_input: Any
) -> list[dict[str, Any]]:
    """Return a rule for each layer, with a group for layers that can only lose channels together.

    Layers are grouped if their outputs are added or multiplied, as determined by
    :func:`~lilliput.torch.channel_groups`; if a grouped convolution reads or produces the
    channels, ``internal_metric_block`` keeps its groups equally large. (The name is as in NNI.)

    Parameters
    ----------
    model : torch.nn.Module
        The uncompressed model.
    config_list : list of dict
        Rules of v3; each is written out for every layer that it selects.
    dummy_input : tensor, tuple or dict
        Inputs of the model.

    Examples
    --------
    >>> import torch
    >>> class Sum(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x):
    ...         return self.c(self.a(x) + self.b(x))
    >>> rules = [{"op_names": ["a", "b"], "sparse_ratio": 0.5}]
    >>> first, second = auto_set_denpendency_group_ids(Sum(), rules, torch.randn(2, 4))
    >>> first["op_names"], first["dependency_group_id"] == second["dependency_group_id"]
    (['a'], True)
    """
    backend = backend_of(model)
    layers = backend.layers(model)
    found = _found(model, layers, dummy_input)
    rules: list[dict[str, Any]] = []
    for rule in config_list:
        selectors = {key: rule[key] for key in NEW_SELECTORS if key in rule}
        rest = {key: value for key, value in rule.items() if key not in selectors}
        if rule.get("exclude"):
            rules.append(dict(rule))
            continue
        parsed = parse_rules([selectors], Rule).rules
        for layer in select(layers, parsed, backend.default_types).chosen:
            rules.append({"op_names": [layer.name], **rest, **found.get(layer.name, {})})
    return rules


def _found(model: Any, layers: Any, dummy_input: Any) -> dict[str, dict[str, Any]]:
    """Return the keys that each layer gets."""
    names = {tensor: layer.name for layer in layers for tensor in layer.tensor_names}
    found: dict[str, dict[str, Any]] = {}
    for group in channel_groups(model, dummy_input):
        alike: dict[bytes, list[str]] = {}
        for piece in group.slices:
            name = names.get(piece.tensor)
            if piece.is_output and name is not None:
                alike.setdefault(np.asarray(piece.units).tobytes(), []).append(name)
        rows = _equal_parts(group.rows)
        for number, members in enumerate(alike.values()):
            members = list(dict.fromkeys(members))
            for name in members:
                keys: dict[str, Any] = {}
                if members[1:]:
                    keys["dependency_group_id"] = f"{group.name} {number}"
                if rows > 1:
                    keys["internal_metric_block"] = rows
                if keys:
                    found[name] = keys
    return found


def _equal_parts(rows: Any) -> int:
    """Return the number of consecutive parts into which rows divide the channels; 1 if they mix."""
    if rows is None:
        return 1
    count = int(rows.max()) + 1
    is_plain = np.array_equal(rows, np.repeat(np.arange(count), len(rows) // count))
    return count if is_plain else 1
