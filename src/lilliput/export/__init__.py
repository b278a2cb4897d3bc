"""Write compressed models as files that other runtimes execute."""

from typing import TYPE_CHECKING

from lilliput.lazy import lazily_from

if TYPE_CHECKING:
    from lilliput.export.onnx_file import export_onnx
    from lilliput.export.result import ExportResult
    from lilliput.export.targets.executorch import export_executorch
    from lilliput.export.targets.openvino import export_openvino

__all__ = ["ExportResult", "export_executorch", "export_onnx", "export_openvino"]

# Imported on first use: the part for Keras works without torch.
_HOMES = {
    "ExportResult": "lilliput.export.result",
    "export_executorch": "lilliput.export.targets.executorch",
    "export_onnx": "lilliput.export.onnx_file",
    "export_openvino": "lilliput.export.targets.openvino",
}

__getattr__, __dir__ = lazily_from(__name__, _HOMES)
