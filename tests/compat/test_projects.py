"""Migrating projects: a diff of programs and config files, applied on request and at once."""

import json
import textwrap

import pytest

from lilliput.compat.nni.reading.projects import find_changes
from lilliput.config.files import read_rules
from lilliput.errors import ConfigError

PROGRAM = """\
from nni.compression.torch import LevelPruner

config_list = [{'sparsity_per_layer': 0.5, 'op_types': ['Linear']}]
LevelPruner(model, config_list).compress()
"""
TODAY = PROGRAM.replace("nni.compression.torch", "lilliput.torch").replace("_per_layer", "")


@pytest.fixture
def project(tmp_path):
    files = {
        "train.py": PROGRAM,
        "other.py": "import os\n",
        "agp.yaml": "torchAGPruner:\n  config:\n  - {support_type: default, final_sparsity: 0.6}\n",
        "rules.json": '[{"sparse_ratio": 0.5, "op_types": ["Linear"]}]',
        "today.yaml": "- {sparsity: 0.5}\n",
        "commented.yaml": "# mine\n- {sparsity_per_layer: 0.5}\n",
        "compose.yaml": "services: [{name: web, prune: true}]\n",
        "broken.json": "{",
        ".venv/lib.py": PROGRAM,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def test_a_folder_is_searched_for_programs_and_config_files(project):
    changes = {change.file.name: change for change in find_changes([project])}
    assert changes.keys() == {"train.py", "agp.yaml", "rules.json", "commented.yaml"}
    assert changes["train.py"].after.decode() == TODAY
    assert changes["commented.yaml"].before == changes["commented.yaml"].after
    assert "has comments" in changes["commented.yaml"].notes[0]
    assert changes["train.py"].diff.splitlines()[3:6] == [
        "-from nni.compression.torch import LevelPruner",
        "+from lilliput.torch import LevelPruner",
        " ",
    ]


def test_files_are_written_on_request_and_a_second_time_nothing_changes(project):
    before = (project / "compose.yaml").read_bytes()
    for change in find_changes([project]):
        change.write()
    assert (project / "train.py").read_text() == TODAY
    assert (project / "compose.yaml").read_bytes() == before
    assert (project / ".venv/lib.py").read_text() == PROGRAM
    rules = [{"op_types": ["default"], "final_sparsity": 0.6}]
    assert read_rules(project / "agp.yaml", ["AGPruner"]) == rules
    assert json.loads((project / "rules.json").read_text()) == [
        {"op_types": ["Linear"], "sparsity": 0.5}
    ]
    assert all(change.before == change.after for change in find_changes([project]))


def test_a_file_that_changed_in_the_meantime_is_not_overwritten(project):
    (change,) = find_changes([project / "train.py"])
    (project / "train.py").write_text("mine = 1\n")
    with pytest.raises(ConfigError, match="changed in the meantime"):
        change.write()
    assert (project / "train.py").read_text() == "mine = 1\n"


def test_a_file_that_was_named_and_cannot_be_read_is_an_error(project):
    for name in ("broken.json", "nowhere.py", "nowhere"):
        with pytest.raises(ConfigError):
            find_changes([project / name])


def test_a_program_in_another_encoding_is_left_alone(project):
    source = f"# coding: latin-1\n# caf\xe9\n{PROGRAM}".encode("latin-1")
    (project / "train.py").write_bytes(source)
    (change,) = find_changes([project / "train.py"])
    assert change.after == source and change.report.runs
