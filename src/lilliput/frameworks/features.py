"""Outputs of layers in one run of a model: recorded for a student, computed for its teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lilliput.errors import ConfigError, StageError
from lilliput.printing import shown

MODEL = "(model)"  # the name of the whole model among its layers


@dataclass(eq=False)
class Run:
    """One forward pass of a student.

    Parameters
    ----------
    args, kwargs
        The arguments of the model.
    is_training : bool
        Whether it was in training mode.
    outputs : dict
        Per layer name: the result of each of its calls.
    stamps : list of (tensor, int)
        The inputs, and how often each had been written to in place.
    may_replace : bool
        Whether it may take the place of an earlier one whose loss was not computed.
    is_ambiguous : bool
        Whether it did so without a sign that it is the one to train on.
    result
        The output of the model itself, in containers of its own.
    result_stamps : list of (tensor, int)
        The tensors of the output, and how often each had been written to in place.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_training: bool
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    stamps: list[tuple[Any, int]] = field(default_factory=list)
    may_replace: bool = False
    is_ambiguous: bool = False
    result: Any = None
    result_stamps: list[tuple[Any, int]] = field(default_factory=list)

    def calls_of(self, name: str, whose: str) -> list[Any]:
        """Return the results of all calls of a layer; raise if it was not called."""
        found = [self.result] if name == MODEL else self.outputs.get(name)
        if not found:
            raise StageError(
                f"layer {name!r} of the {whose} was not called in this forward pass, so there is nothing to "
                "compare; name a layer that runs."
            )
        return found


def pick(output: Any, item: int | str | None, is_tensor: Callable[[Any], bool], place: str) -> Any:
    """Return the tensor of an output to compare.

    A tensor is returned unchanged. For a tuple, dict or dataclass, ``item`` selects the part by its key,
    field or position; without it, ``logits`` or the only tensor is taken.

    Examples
    --------
    >>> pick({"loss": 1.5, "logits": 2.5}, None, lambda x: isinstance(x, float), "the output")
    2.5
    >>> pick((1.5, 2.5), 1, lambda x: isinstance(x, float), "the output")
    2.5
    """
    if is_tensor(output):
        return output
    parts = parts_of(output)
    tensors = {key: part for key, part in parts.items() if is_tensor(part)}
    wanted = item
    if (
        isinstance(item, int)
        and not isinstance(output, Mapping)
        and -len(parts) <= item < len(parts)
    ):
        wanted = list(parts)[item]
    if item is None:
        wanted = "logits" if "logits" in tensors or len(tensors) != 1 else next(iter(tensors))
    if wanted in tensors:
        return tensors[wanted]
    listed = ", ".join(shown(key) for key in tensors) or "none"
    asked = "" if item is None else f", of which {shown(item)} is not one"
    if not parts:
        raise ConfigError(
            f"{place} is a {type(output).__name__}, in which no tensors can be found; expected a tensor, or "
            "a tuple, dict or dataclass with tensors. Compare a layer that returns one: {'op_names': […]}."
        )
    raise ConfigError(
        f"{place} is a {type(output).__name__} with the tensors {listed}{asked}; expected a tensor, or a "
        "rule that selects the part to compare: {'item': …}."
    )


def is_dataclass(output: Any) -> bool:
    """Whether an output is a plain dataclass; those of transformers are dicts."""
    return dataclasses.is_dataclass(output) and not isinstance(output, Mapping)


def parts_of(output: Any) -> dict[Any, Any]:
    """Return the parts of an output by key, by field name or by position; nothing for other objects."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, (tuple, list)):
        names = getattr(output, "_fields", range(len(output)))
        return dict(zip(names, output, strict=True))
    if is_dataclass(output):
        return {part.name: getattr(output, part.name) for part in dataclasses.fields(output)}
    return {}


def links_of(wrapper: Any) -> list[str]:
    """Return the layers of the teacher to compare with a layer of the student."""
    return list(wrapper.config.get("link") or [wrapper.name])
