import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="session", autouse=True)
def one_registry():
    """Let torch read its table of ONNX functions once and not in each export: half of the time."""
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    read = registration.ONNXRegistry.from_torchlib
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration.ONNXRegistry, "from_torchlib", staticmethod(cache(read)))
        yield
