"""Missing packages are named with the fix; broken ones are shown as what they are."""

import subprocess
import sys

import pytest

from lilliput.errors import MissingExtraError
from lilliput.extras import is_installed, require


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages that are broken in other ways than by not being there."""
    (tmp_path / "lacks_a_name.py").write_text("from math import no_such_name\n")
    (tmp_path / "lacks_a_package.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_what_is_not_installed_is_a_missing_extra():
    with pytest.raises(MissingExtraError, match="install it"):
        require("no_such_package", "install it")
    with pytest.raises(MissingExtraError, match="install it"):
        require("no_such_package.part", "install it")
    assert not is_installed("no_such_package")


@pytest.mark.parametrize("name", ["lacks_a_name", "lacks_a_package"])
def test_an_error_inside_a_package_is_shown_as_what_it_is(packages, name):
    with pytest.raises(ImportError, match="no_such") as error:
        require(name, "install it")
    assert not isinstance(error.value, MissingExtraError) and is_installed(name)


@pytest.mark.parametrize("framework", ["torch", "keras"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13"),
        ("import sympy_", "ModuleNotFoundError: No module named 'sympy_'"),
        (None, "MissingExtraError: lilliput."),
    ],
)
def test_a_broken_framework_is_not_called_missing(tmp_path, framework, content, words):
    if content is not None:
        (tmp_path / f"{framework}.py").write_text(content)
    hide = "" if content else f"sys.modules[{framework!r}] = None; "
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {hide}import lilliput.{framework}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert words in done.stderr.splitlines()[-1]
