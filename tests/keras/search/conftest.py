import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "search")]
for name in ("scipy", "sklearn", "torch", "onnxruntime", "tf2onnx"):
    pytest.importorskip(name)
