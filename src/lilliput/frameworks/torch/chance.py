"""Find out whether a model's outputs in evaluation depend on random numbers.

A branch taken if ``random.random() < 0.1`` is missing from most runs, so a check may pass and a later call
fail. But some models draw a number in evaluation, too, and do nothing with it. So a model that draws random
numbers is run with the smallest and the largest possible ones, and with a few others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

# The state of a Mersenne twister, which Python and NumPy have in common, is 624 words. Draws behind the first
# ones are ordinary: rejection sampling would wait for them forever.
_WORDS, _EXTREME = 624, 256
_SMALLEST, _LARGEST = 0x00000000, 0x12DD9BB3  # words that are drawn as 32 zeros, and as 32 ones
_SEEDS = range(3)


def drawn_from(task: Callable[[], Any]) -> str:
    """Run a task; return whose random numbers it has used, Python's or NumPy's, '' if neither."""
    before = _states()
    task()
    after = _states()
    return " and ".join(
        name for name, state in after.items() if repr(state) != repr(before.get(name))
    )


def kinds_of_luck() -> Iterator[None]:
    """Go through extreme and ordinary states of both generators; put them back in the end."""
    held = _states()
    try:
        for seed in _SEEDS:
            words = [random.Random(seed).getrandbits(32) for _ in range(_WORDS)]
            for word in (_SMALLEST, _LARGEST) if seed == 0 else ():
                _set([*[word] * _EXTREME, *words[_EXTREME:]])
                yield
            _set(words)
            yield
    finally:
        random.setstate(held["random"])
        if "numpy.random" in held:
            sys.modules["numpy.random"].set_state(held["numpy.random"])


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:  # which numpy imports when it is first used
        states["numpy.random"] = sys.modules["numpy.random"].get_state()
    return states


def _set(words: list[int]) -> None:
    random.setstate((3, (*words, 0), None))
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].set_state(("MT19937", words, 0))
