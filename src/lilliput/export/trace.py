"""Run the simulation, and trace the model with a ``Site`` node wherever it is quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError, ExportError, LilliputError
from lilliput.export.arguments import model_under
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
from lilliput.export.registry import reading_once
from lilliput.export.rounded import RoundedWeights
from lilliput.export.sizes.assumed import OpenSizes, open_sizes
from lilliput.export.sizes.axes import Axis, batch_axis, find_axes, resized
from lilliput.export.sizes.dynamic_shapes import asked_axes, input_names
from lilliput.export.sizes.other_sizes import BATCH
from lilliput.frameworks.torch.caches import without_states
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.export import check_norms
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.torch.onnx_cells import translations, whole_layers
from lilliput.frameworks.wrapping import marking, step_aside
from lilliput.ops.qparams import QParams


class TraceError(ExportError):
    """torch cannot write the model as ONNX."""


@dataclass(eq=False)
class TorchSimulation(Simulation):
    """What the model does in torch, while its parameters and scales stay as they are."""

    model: nn.Module
    rounded: RoundedWeights = field(default_factory=RoundedWeights)
    _seen: list[tuple[Inputs, list[Tensor]]] = field(default_factory=list)

    def again(self, inputs: Inputs, keep: bool = False) -> Simulation:
        """Run the model on other inputs; ``keep`` what every quantizer returns, as the model is now."""
        if keep:
            return simulate(self.model, inputs, keep)
        outputs = next((outputs for given, outputs in self._seen if given is inputs), None)
        if outputs is None:
            outputs = tensors_in(_run(self.model, inputs, self.rounded.marker()))
        _check_outputs(self.model, outputs)
        return replace(self, inputs=inputs, outputs=outputs)

    def look_at(self, inputs: Inputs) -> None:
        """Run the model on inputs, which hooks may watch; :meth:`again` need not run it then."""
        args, kwargs = inputs
        with evaluating(self.model), marking(self.rounded.marker(), quantizers_in(self.model)):
            self._seen.append((inputs, tensors_in(self.model(*args, **kwargs))))

    def run(self, marker: Marker) -> list[Tensor]:
        """Run the model on the inputs with a marker in place of the quantizers of activations."""
        args, kwargs = self.inputs
        marker = self.rounded.marker(marker)
        with evaluating(self.model), marking(marker, quantizers_in(self.model)):
            return tensors_in(self.model(*args, **kwargs))

    def forget(self) -> None:
        """Give back the memory of what was computed on the way."""
        self.rounded.clear()
        self._seen.clear()

    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""
        return tensors_in(nested)

    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with other sizes, by the names of axes."""
        inputs: Inputs = resized(self.inputs, self.axes, sizes)
        return inputs

    def tensor(self, array: Array, like: Tensor) -> Tensor:
        """Return an array as a tensor where another one is."""
        return torch.from_numpy(array).to(like)


def model_of(quantizer_or_model: Any) -> nn.Module:
    """Return the model to export, or say why it is none."""
    model = model_under(quantizer_or_model)
    if not isinstance(model, nn.Module):
        raise ExportError(
            f"received {type(model).__name__}, expected a compressor or a torch.nn.Module."
        )
    plain = unwrapped(model)
    check_norms(plain)
    return plain


def check_precision(model: nn.Module) -> None:
    """Refuse a model in half precision."""
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise ExportError(
                f"{name!r} is in {parameter.dtype}; runtimes quantize float32: export model.float()."
            )


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


def simulate(model: nn.Module, inputs: Inputs, keep: bool = False) -> TorchSimulation:
    """Run the model in eval mode; ``keep`` what every quantizer returns."""
    places: dict[Key, Place] = {}
    rounded = RoundedWeights()
    quantize = rounded.marker()

    def record(
        wrapper: Any, quant_type: QuantType, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        results = quantize(wrapper, quant_type, tensors)
        place = places.setdefault(key_of(wrapper, quant_type), Place(wrapper, quant_type))
        if keep and not place.is_weight:
            place.results.append(tuple(x.detach().clone() for x in results))
        return results

    output = _run(model, inputs, record)
    _check_outputs(model, tensors_in(output))
    with torch.no_grad():
        for place in places.values():
            found = place.wrapper.quantizer.qparams(place.wrapper, place.quant_type)
            if found is not None and not isinstance(found, QParams):
                raise AlgorithmError(
                    f"{type(place.wrapper.quantizer).__name__}.qparams() returned {type(found).__name__} for "
                    f"{place.name}; expected a QParams, or None."
                )
            place.qparams = found
    found_places, outputs = list(places.values()), tensors_in(output)
    return TorchSimulation(model, inputs, found_places, outputs, _names(output), rounded=rounded)


def _run(model: nn.Module, inputs: Inputs, marker: Marker) -> Any:
    """Return what the model returns in eval mode, or say why it does not run."""
    args, kwargs = inputs
    with evaluating(model), marking(marker, quantizers_in(model)):
        try:
            return model(*args, **kwargs)
        except LilliputError:
            raise
        except Exception as error:
            shapes = [tuple(x.shape) for x in tensors_in(inputs)]
            raise ExportError(
                f"{type(model).__name__} does not run on the example inputs (shapes {shapes}): "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error


def _check_outputs(model: nn.Module, outputs: list[Tensor]) -> None:
    if not outputs or any(not x.numel() or not x.isfinite().all() for x in outputs):
        raise ExportError(
            f"{type(model).__name__} returns nothing, NaN or infinity for the example inputs; give inputs "
            "as they occur."
        )


def _names(output: Any) -> list[str]:
    """Return what to call the outputs in the file: the keys of a dict, or numbers."""
    if isinstance(output, Mapping) and all(isinstance(x, Tensor) for x in output.values()):
        return [str(key) for key in output]
    count = len(tensors_in(output))
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def choose_axes(simulation: Simulation, dynamic_batch: bool, dynamic_shapes: Any) -> list[Axis]:
    """Return the sizes of the inputs to leave open."""
    model, inputs = simulation.model, simulation.inputs
    if not isinstance(dynamic_shapes, bool):
        return asked_axes(model, inputs, dynamic_shapes)
    tensors = tensors_in(inputs)
    batch = batch_axis(tensors)
    chosen = batch if dynamic_batch else []
    if not dynamic_shapes:
        return chosen
    one_row = {batch[0].name: 1} if batch else {}
    small = [axis for axis in batch if _runs(model, resized(inputs, batch, one_row))]

    def runs_at(axes: list[Axis]) -> bool:
        named = [replace(axis, name=str(i)) for i, axis in enumerate(axes)]
        sizes = {axis.name: axis.other for axis in named}
        return _runs(model, resized(inputs, [*small, *named], {**one_row, **sizes}))

    return chosen + find_axes(tensors, input_names(model, inputs), runs_at)


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    """Whether a model takes inputs of these sizes, and returns numbers."""
    args, kwargs = inputs
    with evaluating(model), marking(step_aside, quantizers_in(model)):
        try:
            outputs = tensors_in(model(*args, **kwargs))
        except Exception:  # whatever the model's own code raises
            return False
    return bool(outputs) and all(x.numel() and x.isfinite().all() for x in outputs)


def trace(simulation: Simulation, axes: Sequence[Axis], opset: int) -> tuple[Any, OpenSizes]:
    """Return the model as an ``onnx_ir.Model`` with ``Site`` nodes, and the sizes that it leaves open."""
    from lilliput.export.passes.graph import keep_scopes, rename_sizes

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

    # torch takes a size of one for a constant.
    twice = {axis.name: 2 for axis in axes if axis.size == 1}
    args, kwargs = inputs = resized(simulation.inputs, axes, twice)
    marked = marking(mark, quantizers_in(simulation.model))
    with evaluating(simulation.model), marked, whole_layers(), reading_once():
        try:
            program: Any = torch.onnx.export(
                simulation.model,
                args,
                kwargs=kwargs,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                dynamic_shapes=open_shapes(simulation.model, inputs, axes),
                optimize=False,
                custom_translation_table=translations(),
            )
            keep_scopes(program.model.graph)
            program.optimize()
        except LilliputError:
            raise
        except Exception as error:
            raise TraceError(_explain(simulation.model, error, axes)) from error
    values = _in_order(program.exported_program, inputs)
    sizes = open_sizes(program.exported_program, list(values.values()), axes)
    names = {}
    for axis in sizes.axes:
        for i, dim in axis.places:
            names[str([*values.values()][i].shape[dim])] = axis.name
    rename_sizes(program.model.graph, names)
    return program.model, sizes


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


def open_shapes(model: nn.Module, inputs: Inputs, axes: Sequence[Axis]) -> Any:
    """Return what ``torch.export`` is told of the sizes of all inputs, in the structure of the inputs."""
    leaves, spec = tree_flatten(inputs)
    numbers = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    told: list[Any] = [None] * len(leaves)
    for axis in axes:
        for number, dim in axis.places:
            held = told[numbers[number]] or {}
            told[numbers[number]] = {**held, dim: axis.hint or torch.export.Dim.AUTO}
    args, kwargs = tree_unflatten(told, spec)
    if not axes:
        return None
    if not kwargs:
        return args
    return {**dict(zip(input_names(model, (inputs[0], {})), args, strict=False)), **kwargs}


def _in_order(program: Any, inputs: Inputs) -> dict[str, Tensor]:
    """Return what represents the inputs in a trace, in their own order, by the names they have there."""
    users = set(program.graph_signature.user_inputs)
    nodes = [x for x in program.graph.nodes if x.op == "placeholder" and x.name in users]
    values = {x.name: x.meta["val"] for x in nodes if isinstance(x.meta.get("val"), Tensor)}
    args, kwargs = inputs
    if not args and values.keys() <= kwargs.keys():
        return {name: values[name] for name in kwargs if name in values}
    return values


def _explain(model: nn.Module, error: BaseException, axes: Sequence[Axis]) -> str:
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
    if text.endswith(":"):
        text += f" {first_line(reasons[-1], skip=1)}"
    asked = [axis.name for axis in axes if axis.is_asked]
    is_about_sizes = "dynamic" in str(reasons[-1]).lower()
    if asked == [BATCH] and is_about_sizes:
        text += " If the model needs this batch size, pass dynamic_batch=False."
    elif asked and is_about_sizes:
        text += f" If it cannot be open in {' or '.join(asked)}, leave it out of dynamic_shapes."
    return text


def tensors_in(nested: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]
