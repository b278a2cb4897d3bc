"""Names, locations and sizes of the nodes of a captured torch graph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from lilliput.errors import UnsupportedModelError
from lilliput.frames import is_code_of


def op_name(node: fx.Node) -> str:
    """Return the name of an op without overload and in-place mark: ``add_.Tensor`` is ``add``."""
    schema = getattr(node.target, "_schema", None)
    name = str(node.target) if schema is None else schema.name.split("::")[-1]
    return name if name.startswith("__") else name.rstrip("_") or name


def place(node: fx.Node) -> str:
    """Return the location of an op in the user's code: the module, and the line if known."""
    path = module_path(node)
    frames = re.findall(r'File "(.*)", line (\d+)', node.stack_trace or "")
    own = [frame for frame in frames if not is_code_of(frame[0], torch)]
    where = path or "the model"
    return f"{where} ({Path(own[-1][0]).name}:{own[-1][1]})" if own else where


def module_path(node: fx.Node) -> str:
    """Return the path of the module whose forward contains the op."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def hint(value: Any) -> Any:
    """Return the number that a symbolic size had at capture."""
    expression = getattr(value, "node", None)
    if expression is not None and expression.hint is None:
        raise UnsupportedModelError(
            "some sizes in the model depend on its data (x[x > 0], nonzero, unique), so their "
            "results cannot be traced. Remove that step from the model that is pruned."
        )
    return int(expression.hint) if expression is not None else value


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return a shape as plain numbers."""
    return tuple(int(hint(n)) for n in tensor.shape)
