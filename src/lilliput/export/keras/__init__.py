"""Write compressed Keras models as files that LiteRT and ONNX runtimes execute."""

from typing import TYPE_CHECKING

from lilliput.lazy import lazily_from

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

__getattr__, __dir__ = lazily_from(__name__, _HOMES)
