"""Let the tests here import random_nets.py, which sits beside them, by its plain name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
