"""The widths that modules remember but do not compute with: ``num_features``, ``feature_info``.

Nothing in a run tells whether they are right, yet others read them: ``nn.Linear(model.num_features, 10)``
for a new classifier. Each is compared with the tensors of its module. Where all that had this width have
the same new one, or those that a classifier reads have, the new width is set; otherwise it is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from lilliput.speedup.attributes import Attributes, held_value
from lilliput.speedup.cuts import Cut, named_tensors

_WIDTH = re.compile(r"(feature|channel|chs|dim|width|hidden|planes|embed|d_model|ffn|intermediate)")
_OTHER = re.compile(
    r"(head_dim|kernel|patch|image|img|window|vocab|classes|position|num_hidden_layers)"
)
_OF_CLASSIFIER = ("num_features", "head_hidden_size", "embed_dim", "hidden_size", "feature_dim")
_SMALLEST = 4  # smaller numbers are seldom widths

Dim = tuple[str, int]  # a tensor, and one of its dimensions
Stale = dict[tuple[str, str], int]  # attributes that keep a width which is not there any more


def find_widths(
    model: nn.Module, cuts: Sequence[Cut], classifiers: Sequence[str], known: Attributes
) -> tuple[Attributes, Stale]:
    """Return the widths to set, and those of which nothing certain is known.

    Parameters
    ----------
    model : torch.nn.Module
        The model before the cut.
    cuts : sequence of Cut
        What is cut.
    classifiers : sequence of str
        The weights that make the model's outputs.
    known : dict
        Attributes that are set already.
    """
    sizes = {(cut.tensor, cut.dim): cut.keep.shape[-1] for cut in cuts}
    tensors = named_tensors(model)
    shapes = {(n, d): size for n, t in tensors.items() for d, size in enumerate(t.shape)}
    found: Attributes = {}
    stale: Stale = {}
    for path, module in model.named_modules():
        if not module._modules:
            continue  # the sizes of single layers follow from their tensors
        prefix = f"{path}." if path else ""
        own = {k: v for k, v in shapes.items() if k[0].startswith(prefix)}
        for name, value in _remembered(module):
            if (path, name) in known:
                continue
            dims = [k for k, v in own.items() if v == value]
            new = {sizes.get(k, value) for k in dims}
            if len(new) > 1 and name.rpartition(".")[2] in _OF_CLASSIFIER:
                read = [k for k in dims if k[0] in classifiers and k[1] == 1]
                new = {sizes.get(k, value) for k in read} or new
            if len(new) == 1 and new != {value}:
                found[path, name] = new.pop()
            elif len(new) > 1:
                stale[path, name] = value
    return found, stale


def _remembered(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the attributes of a module that look like widths, those of its config included."""
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if _is_width(name, value):
            yield name, value
        elif name == "feature_info" and isinstance(value, (list, tuple)):
            for i, entry in enumerate(value):
                if isinstance(entry, dict) and _is_width("num_chs", entry.get("num_chs")):
                    yield f"feature_info.{i}.num_chs", entry["num_chs"]


def _is_width(name: str, value: Any) -> bool:
    is_size = type(value) is int and value >= _SMALLEST
    return is_size and bool(_WIDTH.search(name)) and not _OTHER.search(name)


def describe_widths(model: nn.Module, attributes: Mapping[tuple[str, str], Any]) -> str:
    """Return attributes with their values, those of one name and value together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for (path, name), new in attributes.items():
        old = held_value(model.get_submodule(path), name)
        groups.setdefault((name, f"{old} → {new}" if new != old else f"{old}"), []).append(path)
    shown = []
    for (name, what), paths in groups.items():
        first = f"{paths[0]}.{name}" if paths[0] else name
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        shown.append(f"{first} ({what}){more}")
    return ", ".join(shown)
