"""Computed weights: they can be read like any tensor, but raise if they are edited.

The weight of a quantized layer is computed at each read. An edit would be silently lost, so every
method that writes raises instead, also on views of it and on ``.data``.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lilliput.errors import StageError

_WAY = "Edit the Parameter: model.get_parameter('<layer>.{name}') or wrapper.weight"
_VIEWS = (
    *("__getitem__", "detach", "view", "view_as", "reshape", "flatten", "unflatten", "ravel"),
    *("t", "transpose", "permute", "swapaxes", "movedim", "squeeze", "unsqueeze", "expand"),
    *("select", "narrow", "diagonal", "unfold", "alias", "expand_as", "swapdims", "moveaxis"),
    *("chunk", "split", "unbind", "tensor_split", "as_strided", "hsplit", "vsplit", "dsplit"),
    *("split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "new"),
    *("reshape_as", "broadcast_to", "adjoint", "slice_inverse"),
)
_OPERATORS = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
)


def is_eager() -> bool:
    """Whether operations run immediately: nothing compiles, traces, records or transforms."""
    if torch.compiler.is_compiling():
        return False
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def protect(value: Tensor, parameter: Any, name: str, way: str = _WAY) -> Tensor:
    """Return a computed weight that raises if it is edited, with the ``way`` to do it in the message."""
    is_compiled = torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None
    if value is parameter or type(value) is not Tensor or is_compiled:
        return value  # compiled code takes plain tensors only
    computed = value.as_subclass(ComputedWeight)
    computed.origin = (parameter, name, way)
    return computed


class ComputedWeight(Tensor):
    """The value of a weight that a quantizer or a parametrization computes, read-only.

    Operations on it return plain tensors. ``grad`` is the gradient of the underlying Parameter.
    """

    # As in nn.Parameter: fused kernels and other fast paths treat it as a plain tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    origin: tuple[Any, str, str] = (None, "weight", _WAY)

    @property
    def data(self) -> Any:
        """The values without their gradient, also read-only."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        _refuse(self, "data")

    @property
    def grad(self) -> Any:
        """The gradient of the underlying Parameter."""
        parameter = self.origin[0]
        return parameter.grad if isinstance(parameter, nn.Parameter) else None

    @grad.setter
    def grad(self, value: Any) -> None:
        _refuse(self, "grad")

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.as_subclass(Tensor), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _refuse(tensor: ComputedWeight, method: str) -> NoReturn:
    _, name, way = tensor.origin
    raise StageError(
        f"{method}: this {name!r} is computed from the raw Parameter at each read, so an edit would be lost. "
        f"{way.format(name=name)}; to change a copy, clone() it first."
    )


def _refusing(method: str) -> Any:
    def refuse(self: ComputedWeight, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, method)

    return refuse


def _viewing(method: str) -> Any:
    base = getattr(Tensor, method)
    call = base if callable(base) else base.__get__  # the latter for attributes such as T

    def view(self: ComputedWeight, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        if not isinstance(result, Tensor):
            return type(result)(_keep(x, self) for x in result)
        return _keep(result, self)

    return view


def _keep(result: Tensor, source: ComputedWeight) -> Tensor:
    """Return the result of a view of a computed weight: also read-only, unless it is a copy."""
    if result.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return result
    view = result.as_subclass(ComputedWeight)
    view.origin = (None, *source.origin[1:])
    return view


def _equip() -> None:
    writing = [x for x in dir(Tensor) if x.endswith("_") and not x.startswith("_")]
    writing += ["__setitem__", *(f"__i{x}__" for x in _OPERATORS)]
    for method in writing:
        setattr(ComputedWeight, method, _refusing(method))
    for method in _VIEWS:
        if hasattr(Tensor, method):
            setattr(ComputedWeight, method, _viewing(method))
    for name in ("T", "mT", "H", "mH"):
        setattr(ComputedWeight, name, property(_viewing(name)))


_equip()
