"""The operator that marks a quantized tensor in a trace.

``torch.onnx.ops.symbolic`` would work, too, but it takes fourteen arguments, each of which torch processes
a dozen times while tracing; this one has two besides the tensor.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from lilliput.frameworks.exporting.simulation import DOMAIN

_NAME = f"{DOMAIN}::mark"
_once = Lock()
_TYPES = ("float", "float16", "double", "bfloat16")


def mark_operator() -> Any:
    """Return the operator, ``mark(tensor, placement, position)``, which is registered on first use."""
    with _once:
        _library()
    return getattr(torch.ops, DOMAIN).mark.default


@cache  # the operator disappears with the library object
def _library() -> Any:
    library: Any = torch.library.Library(DOMAIN, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("mark(Tensor tensor, int placement, int position) -> Tensor")
    library.impl("mark", _same, "CompositeExplicitAutograd")
    torch.library.register_fake(_NAME, _like, lib=library)
    return library


def _same(tensor: Tensor, placement: int, position: int) -> Tensor:
    return tensor.clone()


def _like(tensor: Tensor, placement: int, position: int) -> Tensor:
    return torch.empty_like(tensor)


def write_mark(tensor: Any, placement: int, position: int) -> Any:
    """Write the operator as a ``Mark`` node of ONNX."""
    return _onnx_operator()(tensor, id=placement, position=position)


@cache
def _onnx_operator() -> Any:
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    schema = OpSchema(
        "Mark",
        DOMAIN,
        1,
        inputs=[OpSchema.FormalParameter("before", "T")],
        outputs=[OpSchema.FormalParameter("after", "T")],
        type_constraints=[("T", [f"tensor({kind})" for kind in _TYPES], "")],
        attributes=[OpSchema.Attribute(x, OpSchema.AttrType.INT) for x in ("id", "position")],
    )
    return Op(Opset(DOMAIN, 1), "Mark", schema)
