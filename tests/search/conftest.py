import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
for name in ("scipy", "sklearn", "onnxscript", "onnxruntime"):
    pytest.importorskip(name)
