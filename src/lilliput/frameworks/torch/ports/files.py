"""Torch for the engine: other processes, and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import StateError
from lilliput.frameworks.ports.files import PlainFiles, Processes, Storing, is_bias_name
from lilliput.frameworks.torch import files, process_group
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.sidecar import Sidecar


class TorchProcesses(Processes):
    """Synchronize with other processes that train the same model."""

    sum_over_processes = staticmethod(process_group.sum_over_processes)
    processes = staticmethod(process_group.processes)
    reduce = staticmethod(process_group.reduce)

    def watch_join(self, model: nn.Module) -> list[Any]:
        """Record which DistributedDataParallel runs the model; see :mod:`joining`."""
        from lilliput.frameworks.torch.joining import watch_join  # here: imports are to be quick

        return watch_join(model)

    def is_joining(self, model: nn.Module) -> bool:
        """Whether the model runs inside ``DistributedDataParallel.join()``."""
        if self.processes() == 1:
            return False
        from lilliput.frameworks.torch.joining import joining

        return joining(model) is not None

    def process_index(self) -> int:
        """Return the rank in the default process group."""
        return torch.distributed.get_rank() if self.processes() > 1 else 0

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> bool:
        """Average tensors in place over the default process group; False if there is none."""
        return process_group.average(tensors)


class TorchStoring(Storing):
    """Turn models and tensors into files, and back."""

    def copy_model(self, model: nn.Module) -> nn.Module:
        """Return a deep copy."""
        from lilliput.frameworks.torch.copies import whole_copy

        return whole_copy(model)

    def model_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the tensors of the state dict."""
        return {key: t for key, t in model.state_dict().items() if isinstance(t, Tensor)}

    def load_model(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Load them; other entries of the state dict are kept."""
        model.load_state_dict({**model.state_dict(), **tensors})

    def export(self, model: nn.Module, wrappers: Sequence[Any], files: PlainFiles) -> None:
        """Write the compressed model as a plain one; see :mod:`export`."""
        from lilliput.frameworks.torch.export.plain import (
            export_plain,  # here: imports are to be quick
        )

        export_plain(model, wrappers, files)

    def dump_tensors(self, tensors: dict[str, Tensor]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""
        return files.dump_tensors(tensors)

    def parse_tensors(self, data: bytes) -> dict[str, Tensor]:
        """Return the tensors of a safetensors file."""
        return files.parse_tensors(data)

    def stored_types(self, model: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the tensors of the state dict; raise if a compressor is attached."""
        if any(isinstance(module, Sidecar) for module in model.modules()):
            raise StateError(
                "a compressor is attached to the model; call its strip() before loading."
            )
        state = self.model_tensors(unwrapped(model))
        files.check_storable(state)
        return {name: (files.type_of(t), tuple(t.shape)) for name, t in state.items()}

    def stored(self, model: nn.Module) -> dict[str, tuple[str, Any]]:
        """Return the state dict of the plain model; see :mod:`export`."""
        from lilliput.frameworks.torch.export.plain import check_norms, compressed_state_dict

        files.check_storable(self.model_tensors(unwrapped(model)))
        check_norms(unwrapped(model))
        state = compressed_state_dict(unwrapped(model))
        return {name: files.to_bits(tensor) for name, tensor in state.items()}

    def stored_biases(self, model: nn.Module) -> set[str]:
        """Return the parameters of one dimension that have the name of a bias."""
        return {
            f"{path}.{name}" if path else name
            for path, module in unwrapped(model).named_modules(remove_duplicate=False)
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter.dim() == 1 and is_bias_name(name)
        }

    def load_stored(self, model: nn.Module, tensors: dict[str, tuple[str, Any]]) -> None:
        """Load them as a state dict."""
        state = {name: files.from_bits(*tensor) for name, tensor in tensors.items()}
        held = self.model_tensors(unwrapped(model))
        files.check_writable(held)
        files.check_tied(held, state)
        self.load_model(unwrapped(model), state)
