"""The parts of a model, as named facts that compare equal only if nothing was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.testing.expect import expect


class Same:
    """An object that is equal only to itself; the reference keeps its id from being reused.

    Examples
    --------
    >>> first, second = [1], [1]
    >>> Same(first) == Same(first), Same(first) == Same(second)
    (True, False)
    """

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __repr__(self) -> str:
        return f"{type(self.thing).__name__} at {id(self.thing):#x}"


def expect_same_parts(now: Mapping[str, Any], then: Mapping[str, Any], when: str) -> None:
    """Expect every fact to be unchanged, and no new facts."""
    for what, before in then.items():
        after = now.get(what)
        expect(after == before, f"{when}, {what}: {_difference(after, before)}.")
    surplus = sorted(now.keys() - then.keys())
    expect(not surplus, f"{when}, the model has new parts: {surplus}.")


def _difference(after: Any, before: Any) -> str:
    """Return the added and the missing entries, or both values if that is not informative.

    Examples
    --------
    >>> _difference(["a", "b"], ["a", "c"])
    "new: ['b'], gone: ['c']"
    >>> _difference(1, 2)
    'found 1, was 2'
    """
    if isinstance(after, list) and isinstance(before, list):
        new, gone = [x for x in after if x not in before], [x for x in before if x not in after]
        if new or gone:
            return f"new: {_show(new)}, gone: {_show(gone)}"
    return f"found {_show(after)}, was {_show(before)}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
