"""The layer rule: what each folder may import is read from the source, not believed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput

ROOT = Path(lilliput.__file__).parent
FRAMEWORKS = {"torch", "keras", "tensorflow", "jax"}
FRAMEWORK_FREE = ["config", "ops", "graph", "core", "pruning", "quantization", "distillation"]


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
                "lilliput.frameworks.torch",
                "lilliput.torch",
                "lilliput.frameworks.keras",
                "lilliput.keras",
            )
            assert not name.startswith(own), f"{path}: {name}"


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_backend_imports_no_other_framework(framework):
    for path in (ROOT / "frameworks" / framework).rglob("*.py"):
        for name in imports_of(path):
            assert name.partition(".")[0] not in FRAMEWORKS - {framework}, f"{path} imports {name}"


def closure_of(folder):
    """Return every import that the modules of a folder lead to, lazy ones included."""
    found, waiting = {}, list((ROOT / folder).rglob("*.py"))
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = set(imports_of(path))
        for name in found[path]:
            if name.partition(".")[0] == "lilliput":
                place = ROOT.joinpath(*name.split(".")[1:])
                waiting += [
                    x for x in (place.with_suffix(".py"), place / "__init__.py") if x.exists()
                ]
    return found


def test_the_graph_leads_to_no_framework_and_to_no_stage():
    found = closure_of("graph")
    assert len(found) > 20
    stages = {"pruning", "quantization", "speedup", "export", "recipes", "cli", "core", "backends"}
    for path, names in found.items():
        assert not {name.partition(".")[0] for name in names} & FRAMEWORKS, path
        assert path.relative_to(ROOT).parts[0] not in stages, path


@pytest.mark.parametrize("folder", ["backends", "pruning"])
def test_who_reads_a_graph_does_not_import_the_stage_that_cuts(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert not any(name.startswith("lilliput.speedup") for name in imports_of(path)), path


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


def test_importing_the_torch_facade_costs_next_to_nothing():
    code = (
        "import sys, time, torch; before = set(sys.modules); start = time.process_time()\n"
        "import lilliput.torch\n"
        "print(time.process_time() - start, len(set(sys.modules) - before), 'pydantic' in sys.modules)"
    )
    seconds, modules, has_pydantic = in_a_fresh_process(code).split()
    assert float(seconds) < 0.15
    assert int(modules) < 20
    assert has_pydantic == "False"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("LevelPruner", {"sparsity": 0.5}),
        ("L1NormPruner", {"sparsity": 0.5}),
        ("AGPPruner", {"final_sparsity": 0.5}),
    ],
)
def test_pruning_imports_no_quantizer(name, rule):
    code = (
        "import sys, torch\n"
        f"from lilliput.torch import {name}\n"
        f"{name}(torch.nn.Linear(4, 4), [{rule}]).compress()\n"
        "print([m for m in sys.modules if m.startswith('lilliput.quantization')])"
    )
    assert in_a_fresh_process(code).strip() == "[]"


def test_a_wrong_key_still_says_which_quantizer_has_it():
    code = (
        "import torch\nfrom lilliput.torch import LevelPruner\n"
        "try:\n    LevelPruner(torch.nn.Linear(4, 4), [{'sparsity': 0.5, 'quant_scheme': 'affine'}])\n"
        "except ValueError as error:\n    print(error)"
    )
    assert "LevelPruner does not use it; " in in_a_fresh_process(code)
    assert "QATQuantizer" in in_a_fresh_process(code)


def test_a_name_of_ours_cannot_be_taken_before_it_is_loaded():
    code = (
        "import lilliput\nfrom lilliput import register_pruner\n"
        "try:\n    register_pruner('taylorfo')(type('Mine', (), {}))\n"
        "except ValueError as error:\n    print(error)\n"
        "print(lilliput.pruner('taylorfo').__name__)"
    )
    expected = ["pruner name 'taylorfo' is already taken; choose another.", "TaylorFOWeightPruner"]
    assert in_a_fresh_process(code).splitlines() == expected


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
