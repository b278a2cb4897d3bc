"""Write compressed models as files that other runtimes execute."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.export.onnx_file import export_onnx
    from lilliput.export.result import ExportResult
    from lilliput.export.targets.executorch import export_executorch
    from lilliput.export.targets.openvino import export_openvino

__all__ = ["ExportResult", "export_executorch", "export_onnx", "export_openvino"]

# Loaded when they are first used: what is for Keras does without torch.
_HOMES = {
    "ExportResult": "lilliput.export.result",
    "export_executorch": "lilliput.export.targets.executorch",
    "export_onnx": "lilliput.export.onnx_file",
    "export_openvino": "lilliput.export.targets.openvino",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
