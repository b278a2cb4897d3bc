"""The layer rule: what each folder may import is read from the source, not believed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput

ROOT = Path(lilliput.__file__).parent
FRAMEWORKS = {"torch", "keras", "tensorflow", "jax"}
FRAMEWORK_FREE = ["config", "ops", "core", "pruning", "quantization"]


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


@pytest.mark.parametrize("folder", FRAMEWORK_FREE)
def test_the_engine_and_the_algorithms_import_no_framework(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        for name in imports_of(path):
            assert name.partition(".")[0] not in FRAMEWORKS, f"{path} imports {name}"
            own = (
                "lilliput.backends.torch",
                "lilliput.torch",
                "lilliput.backends.keras",
                "lilliput.keras",
            )
            assert not name.startswith(own), f"{path}: {name}"


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_backend_imports_no_other_framework(framework):
    for path in (ROOT / "backends" / framework).rglob("*.py"):
        for name in imports_of(path):
            assert name.partition(".")[0] not in FRAMEWORKS - {framework}, f"{path} imports {name}"


# Who may look over the bridge to NNI: the reader of config lists, at a rule that its schema does not
# know, and the command that migrates files.
TRANSLATORS = {
    "config/parse.py": {"lilliput.compat.nni.config.dialects"},
    "cli/migrate.py": {
        "lilliput.compat.nni.config.dialects",
        "lilliput.compat.nni.reading.projects",
    },
}


def test_nobody_imports_the_bridges_to_other_toolkits_but_to_translate():
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        if "compat" not in place.parts:
            bridges = {name for name in imports_of(path) if name.startswith("lilliput.compat")}
            assert bridges <= TRANSLATORS.get(place.as_posix(), set()), path


def test_a_config_list_of_today_never_reaches_the_translator():
    code = (
        "import sys\nfrom lilliput.config.parse import parse_rules\n"
        "parsed = parse_rules([{'op_types': ['Linear']}, {'op_names': ['head'], 'exclude': True}])\n"
        "print(len(parsed.rules), [m for m in sys.modules if m.startswith('lilliput.compat')])\n"
        "parsed = parse_rules([{'support_type': 'default'}])\n"
        "print(len(parsed.rules), 'lilliput.compat.nni.config.dialects' in sys.modules)"
    )
    assert in_a_fresh_process(code).splitlines() == ["2 []", "1 True"]


def in_a_fresh_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_lilliput_imports_no_framework_and_little_else():
    heavy = sorted(FRAMEWORKS | {"numpy", "pydantic", "rich", "safetensors", "ruamel"})
    code = f"import sys, lilliput; print([m for m in {heavy} if m in sys.modules])"
    assert in_a_fresh_process(code).strip() == "[]"


def test_the_algorithms_can_be_listed_without_a_framework():
    code = (
        "import sys, lilliput; print(lilliput.list_pruners(), lilliput.config_schema('agp')['type'], "
        f"[m for m in {sorted(FRAMEWORKS)} if m in sys.modules])"
    )
    assert in_a_fresh_process(code).strip().endswith("array []")


def test_the_torch_facade_imports_nothing_heavy_beside_torch():
    heavy = [
        "keras",
        "tensorflow",
        "jax",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "openvino",
        "executorch",
        "sklearn",
    ]
    heavy += ["rich", "torch._inductor", "torch.distributed.tensor"]
    code = (
        "import sys, torch; before = set(sys.modules); import lilliput.torch; "
        f"print([m for m in {heavy} if m in set(sys.modules) - before])"
    )
    assert in_a_fresh_process(code).strip() == "[]"


def test_a_missing_torch_is_said_in_one_line():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import lilliput.torch\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    expected = "MissingExtraError lilliput.torch needs PyTorch: pip install 'lilliput[torch]'"
    assert in_a_fresh_process(code).strip() == expected


def test_keras_on_another_backend_works_without_torch():
    pytest.importorskip("jax")
    code = (
        "import os, sys; os.environ['KERAS_BACKEND'] = 'jax'\n"
        "class NoTorch:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n            raise ImportError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "import keras\nfrom lilliput.keras import LevelPruner\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])\n"
        "LevelPruner(model, [{'sparsity': 0.5}]).compress()\n"
        "print(int(keras.ops.sum(model.layers[0].kernel == 0)), 'tensorflow' in sys.modules)"
    )
    assert in_a_fresh_process(code).strip() == "10 False"
