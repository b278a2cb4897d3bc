"""Example inputs, from any of the options."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from lilliput.cli import options
from lilliput.cli.functions import call_user
from lilliput.errors import ConfigError


@dataclass(frozen=True)
class Sources:
    """The values of ``--inputs``, ``--input-shape`` and ``--data``."""

    inputs: options.Inputs = None
    input_shape: options.InputShape = None
    data: options.Data = None

    def __post_init__(self) -> None:
        if self.inputs is not None and self.input_shape is not None:
            raise ConfigError("--inputs and --input-shape are alternatives; pass one of them.")
        if self.input_shape is not None:
            parse_shape(self.input_shape)

    def find(self, framework: str) -> Any:
        """Return example inputs from a function, a shape or the first batch; None without any."""
        if self.inputs is not None:
            return call_user(self.inputs, "--inputs")
        if self.input_shape is not None:
            return random_inputs(parse_shape(self.input_shape), framework)
        if self.data is not None:
            batch = self.batches(1)[0]
            return batch[0] if isinstance(batch, (tuple, list)) else batch
        return None

    def batches(self, count: int) -> list[Any]:
        """Return the first batches of the function named by ``--data``; none without it."""
        if self.data is None:
            return []
        batches = list(itertools.islice(iter(call_user(self.data, "--data")), count))
        if not batches:
            raise ConfigError(f"--data {self.data}: returned no batches, expected at least one.")
        return batches


def require_inputs(found: Any) -> Any:
    """Return example inputs, or raise with the options that provide them."""
    if found is None:
        raise ConfigError(
            "running a model needs example inputs: pass --inputs module:function, --data "
            "module:function or --input-shape such as 1,3,32,32."
        )
    return found


def parse_shape(text: str) -> list[int]:
    """Return the numbers of a shape.

    Examples
    --------
    >>> parse_shape("1,3,32,32"), parse_shape("8x20")
    ([1, 3, 32, 32], [8, 20])
    """
    parts = re.split(r"[,x×]", text.strip())
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--input-shape: received {text!r}, expected numbers such as 1,3,32,32 (batch first)."
        )
    return [int(part) for part in parts]


def random_inputs(shape: list[int], framework: str) -> Any:
    """Return random numbers of a shape, in the form of the framework's models."""
    import numpy as np

    drawn = np.random.default_rng(0).standard_normal(shape).astype("float32")
    return like_framework(drawn, framework)


def like_framework(inputs: Any, framework: str) -> Any:
    """Return arrays in the form of a framework's models."""
    if framework != "torch":
        return inputs
    from lilliput.frameworks import backend_named

    convert = backend_named(framework).from_array
    return tuple(convert(x) for x in inputs) if isinstance(inputs, tuple) else convert(inputs)
