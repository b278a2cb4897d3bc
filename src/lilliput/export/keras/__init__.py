"""Write compressed Keras models as files that LiteRT and ONNX runtimes execute."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.export.keras.latency import litert_latency
    from lilliput.export.keras.litert_file import export_litert
    from lilliput.export.keras.onnx_file import export_onnx
    from lilliput.export.result import ExportResult

__all__ = ["ExportResult", "export_litert", "export_onnx", "litert_latency"]

# Loaded when they are first used: importing is to be quick.
_HOMES = {
    "ExportResult": "lilliput.export.result",
    "export_litert": "lilliput.export.keras.litert_file",
    "export_onnx": "lilliput.export.keras.onnx_file",
    "litert_latency": "lilliput.export.keras.latency",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
