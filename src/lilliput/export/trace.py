"""Run the simulation, and trace the model with a ``Site`` node wherever it is quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lilliput.backends.torch.discover import unwrapped
from lilliput.backends.torch.export import _check_norms
from lilliput.backends.torch.instrument import quantizers_in
from lilliput.backends.wrapping import marking
from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError, ExportError, LilliputError
from lilliput.export.batch import BatchSizes, assumed_sizes
from lilliput.export.places import (
    DOMAIN,
    Array,
    Inputs,
    Key,
    Marker,
    Place,
    Simulation,
    first_line,
    key_of,
)
from lilliput.ops.qparams import QParams
from lilliput.speedup.caches import without_states
from lilliput.speedup.capture import quiet


@dataclass(eq=False)
class TorchSimulation(Simulation):
    """What the model does in torch."""

    model: nn.Module

    def again(self, inputs: Inputs, keep: bool = False) -> Simulation:
        """Run the model on other inputs; ``keep`` what every quantizer returns."""
        return simulate(self.model, inputs, keep)

    def run(self, marker: Marker) -> list[Tensor]:
        """Run the model on the inputs with a marker in place of the quantizers."""
        args, kwargs = self.inputs
        with evaluating(self.model), marking(marker, quantizers_in(self.model)):
            return tensors_in(self.model(*args, **kwargs))

    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""
        return tensors_in(nested)

    def other_size(self, rows: int = 0) -> Inputs:
        """Return the inputs with other ``rows``; by default one in place of several, or two of one."""
        return other_size(self.inputs, rows)

    def tensor(self, array: Array, like: Tensor) -> Tensor:
        """Return an array as a tensor where another one is."""
        return torch.from_numpy(array).to(like)


def model_of(quantizer_or_model: Any) -> nn.Module:
    """Return the model to export, or say why it is none."""
    model = getattr(quantizer_or_model, "bound_model", quantizer_or_model)
    if model is not quantizer_or_model and not getattr(quantizer_or_model, "is_wrapped", False):
        raise ExportError(
            f"{type(quantizer_or_model).__name__} is not at work on a model; call compress() before "
            "export_onnx(), or give the model itself to export it without compression."
        )
    if not isinstance(model, nn.Module):
        raise ExportError(
            f"received {type(model).__name__}, expected a compressor or a torch.nn.Module."
        )
    plain = unwrapped(model)
    _check_norms(plain)
    return plain


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into eval mode without a key/value cache, and back to where each was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), quiet(), without_states(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def simulate(model: nn.Module, inputs: Inputs, keep: bool = False) -> Simulation:
    """Run the model in eval mode; ``keep`` what every quantizer returns."""
    places: dict[Key, Place] = {}

    def record(
        wrapper: Any, quant_type: QuantType, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = wrapper._quantizer().run(wrapper, quant_type, tensors)
        place = places.setdefault(key_of(wrapper, quant_type), Place(wrapper, quant_type))
        if keep and not place.is_weight:
            place.results.append(tuple(x.detach().clone() for x in results))
        return results

    args, kwargs = inputs
    with evaluating(model), marking(record, quantizers_in(model)):
        try:
            output = model(*args, **kwargs)
        except LilliputError:
            raise
        except Exception as error:
            shapes = [tuple(x.shape) for x in tensors_in(inputs)]
            raise ExportError(
                f"{type(model).__name__} does not run on the example inputs (shapes {shapes}): "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
    outputs = tensors_in(output)
    if not outputs or any(not x.numel() or not x.isfinite().all() for x in outputs):
        raise ExportError(
            f"{type(model).__name__} returns nothing, NaN or infinity for the example inputs; give inputs "
            "as they occur."
        )
    with torch.no_grad():
        for place in places.values():
            found = place.wrapper.quantizer.qparams(place.wrapper, place.quant_type)
            if found is not None and not isinstance(found, QParams):
                raise AlgorithmError(
                    f"{type(place.wrapper.quantizer).__name__}.qparams() returned {type(found).__name__} for "
                    f"{place.name}; expected a QParams, or None."
                )
            place.qparams = found
    return TorchSimulation(model, inputs, list(places.values()), tensors_in(output), _names(output))


def _names(output: Any) -> list[str]:
    """Return what to call the outputs in the file: the keys of a dict, or numbers."""
    if isinstance(output, Mapping) and all(isinstance(x, Tensor) for x in output.values()):
        return [str(key) for key in output]
    count = len(tensors_in(output))
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def trace(simulation: Simulation, dynamic_batch: bool, opset: int) -> tuple[Any, BatchSizes]:
    """Return the model as an ``onnx_ir.Model`` with ``Site`` nodes, and the batch sizes it is right for."""
    from lilliput.export.graph import keep_scopes

    numbers = {place.key: i for i, place in enumerate(simulation.places)}

    def mark(
        wrapper: Any, quant_type: QuantType, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        number = numbers[key_of(wrapper, quant_type)]
        place = simulation.places[number]
        is_own = place.qparams is None or place.qparams.is_result
        if not place.is_weight and is_own:
            tensors = wrapper._quantizer().run(wrapper, quant_type, tensors)
        if not place.is_weight and place.qparams is None:
            return tensors
        return tuple(_site(x, number, i) for i, x in enumerate(tensors))

    (args, kwargs), shapes = _traced_inputs(simulation.inputs, dynamic_batch)
    with evaluating(simulation.model), marking(mark, quantizers_in(simulation.model)):
        try:
            program: Any = torch.onnx.export(
                simulation.model,
                args,
                kwargs=kwargs,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                dynamic_shapes=shapes,
                optimize=False,
            )
            keep_scopes(program.model.graph)
            program.optimize()
        except LilliputError:
            raise
        except Exception as error:
            raise ExportError(_explain(simulation.model, error, dynamic_batch)) from error
    return program.model, assumed_sizes(program.exported_program)


def _site(tensor: Tensor, number: int, position: int) -> Tensor:
    site: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::Site",
        [tensor],
        {"id": number, "position": position},
        dtype=tensor.dtype,
        shape=tensor.shape,
        version=1,
    )
    return site


def _traced_inputs(inputs: Inputs, dynamic_batch: bool) -> tuple[Inputs, Any]:
    """Return the inputs to trace with, and which of their sizes are left open."""
    tensors = [x for x in tensors_in(inputs) if x.dim()]
    if not dynamic_batch or not tensors:
        return inputs, None
    batch = tensors[0].shape[0]

    def has_batch(x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == batch

    def twice(x: Any) -> Any:  # torch takes a size of one for a constant
        return torch.cat([x, x]) if batch == 1 and has_batch(x) else x

    def spec(x: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if has_batch(x) else None

    args, kwargs = inputs
    shapes = (*(tree_map(spec, x) for x in args),) if args else tree_map(spec, kwargs)
    return tree_map(twice, inputs), shapes


def other_size(inputs: Inputs, rows: int = 0) -> Inputs:
    """Return inputs with other ``rows``; by default one in place of several, or two in place of one."""
    tensors = [x for x in tensors_in(inputs) if x.dim()]
    batch = tensors[0].shape[0] if tensors else 0
    rows = rows or (1 if batch > 1 else 2)

    def change(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.dim() or x.shape[0] != batch:
            return x
        return x[torch.arange(rows, device=x.device) % batch]

    args, kwargs = inputs
    return tree_map(change, args), tree_map(change, kwargs)


def _explain(model: nn.Module, error: BaseException, dynamic_batch: bool) -> str:
    """Return why torch could not trace a model, from the innermost reason it gives."""
    reasons: list[BaseException] = []
    reason: BaseException | None = error
    while reason is not None and reason not in reasons:
        reasons.append(reason)
        reason = reason.__cause__
    text = f"torch cannot write {type(model).__name__} as ONNX: "
    for reason in reversed(reasons):
        found = re.search(r"No ONNX function found for .*?op='?([\w.]+)", str(reason))
        if found is not None:
            return f"{text}{found[1]} has no ONNX form; replace it in the model."
    if "DynamicCache" in str(reasons[-1]):
        return (
            f"{text}it returns a key/value cache, which is no tensor; call it with use_cache=False."
        )
    text += f"{type(reasons[-1]).__name__}: {first_line(reasons[-1])}"
    if dynamic_batch and "ynamic" in str(reasons[-1]):
        text += " If the model needs this batch size, pass dynamic_batch=False."
    return text


def tensors_in(nested: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]
