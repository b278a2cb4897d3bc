"""Write compressed models as files that other runtimes execute."""

from lilliput.export.onnx_file import export_onnx
from lilliput.export.result import ExportResult

__all__ = ["ExportResult", "export_onnx"]
