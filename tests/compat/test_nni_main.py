"""The runner: ``python -m lilliput.compat.nni`` behaves like ``python`` with NNI in place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput

SCRIPT = """\
import sys
from pathlib import Path
import beside
from nni.compression.torch import LevelPruner
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
print(LevelPruner.__module__, beside.HERE, Path(sys.argv[0]).name, sys.argv[1:])
sys.exit(7)
"""


def run(*arguments, cwd, path=()):
    source = Path(lilliput.__file__).parents[1]
    search = os.pathsep.join([str(source), *map(str, path)])
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("HERE = True\n")
    return folder


def test_the_runner_runs_a_script_as_python_would(program, tmp_path):
    script = program / "train.py"
    done = run("-m", "lilliput.compat.nni", script, "--lr", "0.1", "-m", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "lilliput.pruning.level True train.py ['--lr', '0.1', '-m']\n"
    assert done.returncode == 7


def test_the_runner_runs_a_module_as_python_would(program):
    done = run("-m", "lilliput.compat.nni", "-m", "train", "--force", cwd=program)
    assert done.stderr == ""
    assert done.stdout == "lilliput.pruning.level True train.py ['--force']\n"
    assert done.returncode == 7


def test_the_runner_refuses_beside_the_real_nni_unless_forced(program, tmp_path):
    fake_nni = tmp_path / "site"
    (fake_nni / "nni").mkdir(parents=True)
    (fake_nni / "nni" / "__init__.py").touch()
    refused = run("-m", "lilliput.compat.nni", "train.py", cwd=program, path=[fake_nni])
    assert refused.returncode == 1
    assert "the real NNI is installed" in refused.stderr
    assert "Traceback" not in refused.stderr
    forced = run("-m", "lilliput.compat.nni", "--force", "train.py", cwd=program, path=[fake_nni])
    assert forced.returncode == 7, forced.stderr


@pytest.mark.parametrize("arguments", [[], ["--nonsense", "x.py"], ["-m"], ["missing.py"]])
def test_the_runner_explains_a_wrong_call(tmp_path, arguments):
    done = run("-m", "lilliput.compat.nni", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "usage:" in done.stderr or "no file 'missing.py'" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_shim_changes_nothing(tmp_path):
    code = (
        "import sys; before = list(sys.meta_path)\n"
        "import lilliput.compat.nni\n"
        "assert sys.meta_path == before\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('nni', 'torch', 'keras')]\n"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
