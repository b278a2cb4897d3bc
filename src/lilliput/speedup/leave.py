"""Before and after shrinking: what must not be there, and how compressors let go of a model."""

from __future__ import annotations

from torch import nn

from lilliput.backends.torch.backend import TorchBackend, strip
from lilliput.backends.torch.weights import is_sharded
from lilliput.backends.torch.wrapper import ModuleWrapper, QuantizerModuleWrapper
from lilliput.errors import StageError, UnsupportedModelError


def check_model(model: nn.Module) -> None:
    """Raise if a model cannot be shrunk as it stands."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a torch.nn.Module."
        )
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise StageError(
            f"a {type(model).__name__} remembers the shapes of its parameters; shrink model.module in "
            "every process, and wrap it again."
        )
    for module in model.modules():
        if isinstance(module, QuantizerModuleWrapper):
            raise StageError(
                f"layer {module.name!r} is under {type(module.compressor).__name__}; shrink first and "
                "quantize the smaller model."
            )
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise UnsupportedModelError(
                f"{name!r} is spread over processes; gather the model, shrink it, and shard it again."
            )


def release(model: nn.Module) -> None:
    """Make every compressor let go of a model, its masks left as zeros."""
    wrappers = [m for m in model.modules() if isinstance(m, ModuleWrapper)]
    compressors = {id(w.compressor): w.compressor for w in wrappers if w.compressor is not None}
    TorchBackend().widen_norms(model)
    for compressor in compressors.values():
        compressor.strip()
    strip(model)
