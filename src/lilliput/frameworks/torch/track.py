"""Locate errors in a model."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lilliput
from lilliput.frames import is_code_of


@dataclass(frozen=True)
class Failure:
    """A shrunk model that did not pass: the failing module if known, and what happened."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what


def failing_module(model: nn.Module, run: Callable[[nn.Module], Any]) -> str:
    """Return the path of the module in which running a model fails, '' for the model itself."""
    stack: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    handles = []
    for name, module in model.named_modules():
        handles += [
            module.register_forward_pre_hook(enter(name)),
            module.register_forward_hook(leave),
        ]
    try:
        run(model)
    except Exception:
        return stack[-1] if stack else ""
    finally:
        for handle in handles:
            handle.remove()
    return ""


def describe(error: BaseException) -> str:
    """Return an error with the line of user code that caused it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not is_code_of(f.filename, torch, lilliput)]
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].line})" if own else ""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{where}: {lines[0][:200] if lines else ''}"
