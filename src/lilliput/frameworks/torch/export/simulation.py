"""Run the simulation of a torch model, and record its quantizer placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import ExportError
from lilliput.frameworks.exporting.simulation import Inputs, Simulation, model_under, numbered
from lilliput.frameworks.torch.caches import without_states
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import as_inputs as as_inputs
from lilliput.frameworks.torch.export.plain import check_norms
from lilliput.frameworks.torch.export.rounded import RoundedWeights
from lilliput.frameworks.torch.export.sizes import input_names, resized, tensors_in
from lilliput.frameworks.torch.modes import evaluating as in_eval_mode
from lilliput.frameworks.wrapping import Marker

_HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class TorchSimulation(Simulation):
    """The simulation of a model in torch, while its parameters and scales do not change."""

    rounded: RoundedWeights = field(default_factory=RoundedWeights)

    def call(self) -> Any:
        """Return the model's outputs in eval mode."""
        args, kwargs = self.inputs
        with evaluating(self.model):
            return self.model(*args, **kwargs)

    def marker(self, others: Marker) -> Marker:
        """Return a marker that rounds weights once, and activations by ``others``."""
        return self.rounded.marker(others)

    def forget(self) -> None:
        """Release the memory of intermediate results."""
        super().forget()
        self.rounded.clear()

    def tensors(self, nested: Any) -> list[Tensor]:
        """Return the tensors in nested tuples, lists and dicts, in order."""
        return tensors_in(nested)

    def resized(self, sizes: Mapping[str, int]) -> Inputs:
        """Return the inputs with other sizes, by the names of axes."""
        return resized(self.inputs, self.axes, sizes)

    def input_names(self) -> list[str]:
        """Return the names of the parameters of ``forward``."""
        return input_names(self.model, self.inputs)

    def output_names(self, output: Any) -> list[str]:
        """Return the keys of a dict of tensors, or numbers."""
        if isinstance(output, Mapping) and all(isinstance(x, Tensor) for x in output.values()):
            return [str(key) for key in output]
        return numbered(len(tensors_in(output)), "output")


simulate = TorchSimulation.of


def model_of(quantizer_or_model: Any) -> nn.Module:
    """Return the model to export, or raise an error with the reason."""
    model = model_under(quantizer_or_model)
    if not isinstance(model, nn.Module):
        raise ExportError(
            f"received {type(model).__name__}, expected a compressor or a torch.nn.Module."
        )
    plain = unwrapped(model)
    check_norms(plain)
    for name, parameter in plain.named_parameters():
        if parameter.dtype in _HALF:
            raise ExportError(
                f"{name!r} is in {parameter.dtype}; runtimes quantize float32: export model.float()."
            )
    return plain


def like_example(batch: Any, inputs: Inputs) -> Inputs:
    """Return a batch as inputs, without labels."""
    args, kwargs = as_inputs(batch)
    count = len(inputs[0])
    return (args[:count], kwargs) if count and not kwargs else (args, kwargs)


def plain_source(model: nn.Module, example_inputs: Any) -> tuple[nn.Module, Any]:
    """Return a copy of a model without compressors, and the example inputs."""
    return plain_copy(model), example_inputs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into eval mode without a key/value cache, and restore the modes."""
    with in_eval_mode(model), torch.no_grad(), quiet(), without_states(model):
        yield
