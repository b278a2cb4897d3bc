"""``count_flops_params``: NNI's table of multiplications and parameters, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.torch.modes import evaluating
from lilliput.frameworks.torch.weights import plain_type
from lilliput.frameworks.wrapping import marking, step_aside

Count = Callable[[Any, Any, Any], Any]
Row = dict[str, Any]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_UPSAMPLING = (nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d)
# Operations for each number that interpolation computes.
_INTERPOLATION = {"linear": 5, "bilinear": 11, "bicubic": 259, "trilinear": 31}


def count_flops_params(
    model: nn.Module,
    x: Any,
    custom_ops: Mapping[type, Count] | None = None,
    verbose: bool = True,
    mode: str = "default",
) -> tuple[int, int, list[Row]]:
    """Count the multiplications and parameters of a model, and print them as a table.

    One example is counted, whatever the batch. Weights removed by a pruner's mask are not counted;
    the corresponding inputs are, until the model is cut.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is run once in evaluation mode and not changed.
    x : tensor, tuple of tensors, or tuple of int
        Inputs of the model, or their shape.
    custom_ops : dict, optional
        By module type, ``f(module, inputs, output)`` that returns a number, or a dict with ``flops``,
        ``params`` and ``weight_shape``.
    verbose : bool
        Whether to print the table.
    mode : str
        ``'default'``: convolutions and linear layers; ``'full'``: also biases, transposed convolutions,
        batch norms, ``LeakyReLU``, average pooling and upsampling.

    Returns
    -------
    tuple of int, int and list of dict
        The totals, and for each call of a layer: ``name``, ``module_type``, ``weight_shape``, ``flops``,
        ``params``, ``input_size``, ``output_size``.

    Examples
    --------
    >>> count_flops_params(nn.Sequential(nn.Linear(3, 4)), (1, 3), verbose=False)[:2]
    (12, 16)
    """
    if mode not in ("default", "full"):
        raise ConfigError(f"mode: received {mode!r}, expected 'default' or 'full'.")
    counts = {**_counts(mode), **(custom_ops or {})}
    rows: list[Row] = []
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(marking(step_aside, quantizers_in(model)))
        stack.enter_context(torch.no_grad())
        for name, module in model.named_modules():
            count = counts.get(plain_type(type(module)))
            if count is not None:
                note = partial(_note, rows, name, count)
                stack.callback(module.register_forward_hook(note).remove)
        model(*_inputs(model, x))
    flops = sum(row["flops"] for row in rows)
    params = sum({row["name"]: row["params"] for row in rows}.values())
    if verbose:
        print(table(rows))
        print(f"FLOPs total: {flops}")
        print(f"#Params total: {params}")
    return flops, params, rows


def _inputs(model: nn.Module, x: Any) -> tuple[Any, ...]:
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    if isinstance(x, (tuple, list, torch.Size)) and all(isinstance(n, int) for n in x):
        return (torch.zeros(tuple(x), device=device),)
    given = (x,) if isinstance(x, Tensor) else x
    if not isinstance(given, (tuple, list)) or not all(isinstance(t, Tensor) for t in given):
        raise ConfigError(
            f"x: received {type(x).__name__}, expected a tensor, a tuple of tensors or a shape."
        )
    return tuple(t.to(device) for t in given)


def _note(rows: list[Row], name: str, count: Count, module: Any, given: Any, output: Any) -> None:
    found = count(module, given, output)
    if not isinstance(found, Mapping):
        weight = getattr(module, "weight", None)
        found = {
            "flops": int(found),
            "params": sum(p.numel() for p in module.parameters(recurse=False)),
            "weight_shape": tuple(weight.shape) if isinstance(weight, Tensor) else 0,
        }
    sizes = {"input_size": tuple(given[0].shape), "output_size": tuple(output.shape)}
    kind = plain_type(type(module)).__name__
    rows.append({"name": name, **sizes, "module_type": kind, **found})


def _counts(mode: str) -> dict[type, Count]:
    with_bias = mode == "full"
    found: dict[type, Count] = dict.fromkeys(_CONVOLUTIONS, partial(_convolution, with_bias))
    found[nn.Linear] = partial(_linear, with_bias)
    if mode == "full":
        found |= dict.fromkeys(_TRANSPOSED, partial(_transposed, with_bias))
        found |= dict.fromkeys(_NORMS, lambda m, x, y: 2 * _each(x[0]))
        found[nn.LeakyReLU] = lambda m, x, y: _each(x[0])
        found |= dict.fromkeys(_POOLS, lambda m, x, y: _each(y))
        found |= dict.fromkeys(_ADAPTIVE, _adaptive)
        found |= dict.fromkeys(
            _UPSAMPLING, lambda m, x, y: _INTERPOLATION.get(m.mode, 0) * _each(y)
        )
    return found


def _each(tensor: Tensor) -> int:
    """Return how many numbers one example has."""
    return prod(tensor.shape[1:])


def _weights(module: Any) -> int:
    """Return the number of unmasked weights of a layer."""
    mask = getattr(module, "weight_mask", None)
    return int(module.weight.numel() if mask is None else mask.count_nonzero())


def _biases(module: Any, positions: int) -> int:
    if module.bias is None:
        return 0
    share = _weights(module) / max(module.weight.numel(), 1)
    return int(round(share * module.bias.numel()) * positions)


def _convolution(with_bias: bool, module: Any, given: Any, output: Tensor) -> int:
    positions = prod(output.shape[2:])
    return int(_weights(module) * positions + (_biases(module, positions) if with_bias else 0))


def _transposed(with_bias: bool, module: Any, given: Any, output: Tensor) -> int:
    bias = _biases(module, prod(output.shape[2:])) if with_bias else 0
    return int(_weights(module) * prod(given[0].shape[2:]) + bias)


def _linear(with_bias: bool, module: Any, given: Any, output: Tensor) -> int:
    positions = prod(output.shape[1:-1])
    return int(_weights(module) * positions + (_biases(module, positions) if with_bias else 0))


def _adaptive(module: Any, given: Any, output: Tensor) -> int:
    window = prod(a // b for a, b in zip(given[0].shape[2:], output.shape[2:], strict=True))
    return int((window + 1) * _each(output))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table with borders."""
    calls = Counter(row["name"] for row in rows)
    seen: Counter[str] = Counter()
    keys = ("name", "module_type", "weight_shape", "input_size", "output_size", "flops", "params")
    titles = ["Index", "Name", "Type", "Weight Shape", "Input Size", "Output Size"]
    titles += ["FLOPs", "#Params"]
    several = any(count > 1 for count in calls.values())
    lines = [[*titles, "#Call"] if several else titles]
    for index, row in enumerate(rows):
        seen[row["name"]] += 1
        cells = [index, *(row[key] for key in keys), *([seen[row["name"]]] if several else [])]
        lines.append([str(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    border = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    texts = [
        "|".join(["", *(f" {x.center(w)} " for x, w in zip(line, widths, strict=True)), ""])
        for line in lines
    ]
    return "\n".join([border, texts[0], border, *texts[1:], border])


def count_flops_and_params(*args: Any, **kwargs: Any) -> tuple[int, int]:
    """As :func:`count_flops_params`, in the form of 1.x, which returned only the totals."""
    return count_flops_params(*args, **kwargs)[:2]
