"""torch reads its table of ONNX functions once for all exports, and others are not disturbed."""

import torch
from torch import nn

from lilliput.export import export_onnx
from lilliput.frameworks.torch.export.registry import reading_once


def test_the_table_is_read_once_for_all_exports(tmp_path, monkeypatch):
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    import lilliput.frameworks.torch.export.registry as ours

    calls, read = [], ONNXRegistry.from_torchlib
    monkeypatch.setattr(ours, "_tables", {})
    monkeypatch.setattr(
        ONNXRegistry,
        "from_torchlib",
        staticmethod(lambda **settings: calls.append(settings) or read(**settings)),
    )
    patched = ONNXRegistry.__dict__["from_torchlib"]
    for width in (2, 3):
        export_onnx(nn.Linear(4, width), tmp_path / "net.onnx", torch.randn(2, 4))
    assert len(calls) == 1
    assert ONNXRegistry.__dict__["from_torchlib"] is patched  # as it was


def test_other_versions_of_torch_read_it_each_time(monkeypatch):
    monkeypatch.setattr(
        "lilliput.frameworks.torch.export.registry._HOME", "torch.onnx.no_such_module"
    )
    with reading_once():
        pass
