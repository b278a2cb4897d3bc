"""Whose code a file is."""

import sys

import pytest

import lilliput
from lilliput.frames import is_code_of, is_inside


def test_a_folder_of_the_same_name_is_not_the_package(tmp_path):
    assert is_code_of(lilliput.__file__, lilliput)
    for name in ("lilliput", "src/lilliput", "a b é/lilliput/speedup"):
        assert not is_code_of(str(tmp_path / name / "track.py"), lilliput)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_lead_to_the_same_package(tmp_path):
    (tmp_path / "link").symlink_to(lilliput.__path__[0])
    assert is_code_of(str(tmp_path / "link" / "errors.py"), lilliput)


def test_a_folder_whose_name_begins_alike_is_another(tmp_path):
    assert is_inside(str(tmp_path / "net" / "x.py"), str(tmp_path / "net"))
    assert not is_inside(str(tmp_path / "network" / "x.py"), str(tmp_path / "net"))


def test_code_without_a_file_lies_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_inside("<string>", str(tmp_path))
