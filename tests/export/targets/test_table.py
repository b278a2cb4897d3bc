"""One table of targets: what it promises, each target keeps; nobody else has a list."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput
from lilliput.errors import ConfigError
from lilliput.export.targets.table import SUFFIXES, TARGETS, packages, target_for, targets_of

ROOT = Path(lilliput.__file__).parent


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_says_all_that_others_ask(target):
    assert target.suffix.startswith(".") and target.title and target.writers and target.packages
    for writer in target.writers:
        module, _, function = writer.function.partition(":")
        assert f"def {function}(" in (ROOT.parent / f"{module.replace('.', '/')}.py").read_text()
        assert writer.extra in pyproject_extras() or "," in writer.extra
    for package in target.packages:
        assert package.extra in pyproject_extras()


def pyproject_extras():
    text = (ROOT.parents[1] / "pyproject.toml").read_text()
    part = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", part, re.MULTILINE))


def test_targets_are_found_by_framework_and_by_suffix():
    assert [x.name for x in targets_of("keras")] == ["onnx", "litert"]
    assert target_for("folder/MODEL.PTE").name == "executorch"
    with pytest.raises(ConfigError, match=r"ends in \.onnx or \.tflite or \.xml or \.pte"):
        target_for("model.pt")
    with pytest.raises(
        ConfigError, match="LiteRT files are written from Keras models; use export: onnx"
    ):
        TARGETS["litert"].writer("torch")


def test_reading_the_table_imports_no_framework_and_no_runtime():
    code = (
        "import sys; import lilliput.export.targets.table\n"
        "print([m for m in ('numpy', 'torch', 'keras', 'onnx', 'onnxruntime', 'openvino', 'executorch')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_targets_know_their_suffixes():
    """Recipes, reports and the command line look them up."""
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        if place.parts[0] in ("recipes", "cli", "report"):
            lines = path.read_text().splitlines()
            code = [x for x in lines if ">>>" not in x and "..." not in x and '"""' not in x]
            for suffix in SUFFIXES:
                assert f'"{suffix}"' not in "\n".join(code), f"{place} has {suffix}"


def test_doctor_shows_the_packages_of_all_targets():
    from lilliput.cli.checkup import examine

    rows = {row["name"]: row for row in examine()["packages"]}
    assert {x.name for x in packages()} <= rows.keys()
    for name in ("openvino", "executorch"):
        row = rows[name]
        assert row["version"] or row["install"] == f"pip install 'lilliput[{name}]'"
