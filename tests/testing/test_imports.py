"""Nobody who tests an algorithm for one framework imports the other one."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lilliput.testing

needs_keras = pytest.mark.skipif(find_spec("keras") is None, reason="needs Keras")
NAMES = """
    ConformanceError Report Specimen Subject TinyCNN TinyLSTM TinyMLP TinyTied TinyTransformer check_pruner
    check_quantizer check_together pruner_checks quantizer_checks
"""
KERAS_NAMES = """
    ConformanceError Report Specimen Subject TinyAttention TinyCNN TinyLSTM TinyMLP TinyNested
    TinySubclassed TinyUntold check_pruner check_quantizer check_together make_input pruner_checks
    quantizer_checks
"""

# As if it were not installed: with None in sys.modules, SciPy would think that it is there.
NO_TORCH = """
import sys

class Absent:
    def find_spec(self, name, *others):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed here", name=name)

sys.meta_path.insert(0, Absent())
"""


def in_a_fresh_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_what_they_were():
    assert sorted(lilliput.testing.__all__) == sorted(NAMES.split())
    assert dir(lilliput.testing) == sorted(NAMES.split())
    assert all(hasattr(lilliput.testing, name) for name in NAMES.split())
    with pytest.raises(AttributeError, match="'lilliput.testing' has no attribute 'check_prune'"):
        _ = lilliput.testing.check_prune


def test_the_checks_know_no_framework():
    """They import no framework and nothing of ours that does: they reach it through a lab."""
    code = (
        "import sys; sys.modules.update(torch=None, keras=None, tensorflow=None, jax=None)\n"
        "from lilliput.testing.battery import SHARED_CHECKS\n"
        "print([len(checks) > 15 for checks in SHARED_CHECKS.values()])"
    )
    assert in_a_fresh_process(code) == "[True, True]"


@pytest.mark.parametrize(("own", "other"), [("torch", "keras"), ("keras", "torch")])
def test_a_lab_knows_no_other_framework(own, other):
    root = Path(lilliput.__file__).parent
    paths = [*(root / "frameworks" / own).glob("lab*.py"), root / "testing" / f"{own}_checks.py"]
    assert len(paths) >= 3
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            rf"^ *(from|import) {other}\b|frameworks.{other}|import {other}_", text, re.M
        )


def test_the_import_alone_loads_no_framework():
    code = "import sys, lilliput.testing; print([m for m in ('torch', 'keras', 'jax') if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]"


def test_users_of_torch_do_not_import_keras():
    code = (
        "import sys; sys.modules['keras'] = None\n"
        "from lilliput.testing import Subject, check_pruner, pruner_checks\n"
        "from lilliput.torch import LevelPruner\n"
        "others = [x.__name__ for x in pruner_checks() if x.__name__ != 'check_pruning_again']\n"
        "print(check_pruner(LevelPruner, skip=others).failures)"
    )
    assert in_a_fresh_process(code) == "{}"


@needs_keras
@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_users_of_keras_do_not_need_torch(backend):
    if find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    code = (
        f"{NO_TORCH}\nimport os\n"
        f"os.environ['KERAS_BACKEND'] = {backend!r}; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
        "from lilliput.keras import LevelPruner\n"
        "from lilliput.testing.keras import check_pruner, pruner_checks\n"
        "others = [x.__name__ for x in pruner_checks() if x.__name__ != 'check_train_on_batch_keeps_zeros']\n"
        "print(check_pruner(LevelPruner, skip=others).failures)"
    )
    assert in_a_fresh_process(code) == "{}"


@needs_keras
@pytest.mark.slow
def test_the_names_for_keras_are_what_they_were():
    code = (
        "import os; os.environ.setdefault('KERAS_BACKEND', 'tensorflow')\n"
        "import lilliput.testing.keras as t; print(*sorted(t.__all__), all(hasattr(t, n) for n in t.__all__))"
    )
    assert in_a_fresh_process(code) == " ".join([*sorted(KERAS_NAMES.split()), "True"])
