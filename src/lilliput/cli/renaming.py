"""Translate recipe errors to the options of the command line they came from."""

from __future__ import annotations

import re

from lilliput.errors import ConfigError, Problem

_TOP = "data|train|loss|optimizer|evaluate|inputs|seed"
_PLACES = (
    (re.compile(r"model"), "MODEL"),
    (re.compile(rf"({_TOP})"), r"--\1"),
    (re.compile(r"step \d+ → (?:prune|quantize)"), "--algorithm"),
    (re.compile(r"step \d+ → (epochs|batches|config)"), r"--\1"),
    (re.compile(r"step \d+ → finetune → epochs"), "--finetune"),
    (re.compile(r"step \d+ → (?:file|export)"), "FILE"),
    (re.compile(r"step \d+ → options → (.*)"), r"--option \1"),
    (re.compile(r"step \d+ → config → rule \d+ → sparsity"), "--sparsity"),
    (re.compile(r"step \d+ → config → rule \d+ → quant_bits"), "--bits"),
    (re.compile(r"step \d+ → config → rule \d+ → op_types"), "--op-types"),
)
_WORDS = (
    (re.compile(rf"'({_TOP})' at the top of the recipe"), r"--\1"),
    (re.compile(rf"'({_TOP})'"), r"--\1"),
)
_STARTS = re.compile(rf"({_TOP}|model): ")


def as_options(error: ConfigError, title: str) -> ConfigError:
    """Return the error with options instead of the keys of a recipe.

    Examples
    --------
    >>> problem = Problem("step 1 → config → rule 0 → sparsity", "expected a fraction.")
    >>> print(as_options(ConfigError([problem], title="recipe"), "lilliput prune"))
    lilliput prune: --sparsity: expected a fraction.
    """
    return ConfigError([_rename(problem) for problem in error.problems], title=title)


def _rename(problem: Problem) -> Problem:
    path, message = problem.path, problem.message
    start = _STARTS.match(message)
    if not path and start:  # a location that was only given as text
        path, message = start[1], message[start.end() :]
    for pattern, replacement in _PLACES:
        if pattern.fullmatch(path):
            path = pattern.sub(replacement, path)
            break
    for pattern, replacement in _WORDS:
        message = pattern.sub(replacement, message)
    return Problem(path, message)
