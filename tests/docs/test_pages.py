"""What the pages show is true: their Python runs, their output and their names exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lilliput

REPO = Path(lilliput.__file__).parent.parent.parent
RUN = ["README.md", "docs/config.md", "docs/custom_algorithms.md", "docs/migrating_from_nni.md"]
RUN += ["docs/train_save_export.md", "docs/sensitivity.md"]
RUN += ["docs/structured_pruning.md", "docs/channel_groups.md", "docs/quantization.md"]
RUN += ["docs/keras.md", "docs/migrating_from_tfmot.md"]
PAGES = sorted(
    p.relative_to(REPO).as_posix() for p in [*REPO.glob("*.md"), *REPO.glob("docs/*.md")]
)


def blocks(page, language):
    text = (REPO / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:__array__:DeprecationWarning", str(program)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for drawn in tmp_path.glob("*.svg"):
        shown = REPO / "docs" / "images" / drawn.name
        if shown.exists():
            assert drawn.read_text(encoding="utf-8") == shown.read_text(encoding="utf-8")


def test_the_explanation_shown_is_the_one_printed():
    from torch import nn

    from lilliput.torch import LevelPruner

    model = nn.ModuleDict(
        {
            "stem": nn.Conv2d(3, 16, 3),
            "blocks": nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)]),
            "head": nn.Linear(16, 10),
        }
    )
    rules = [
        {"op_types": ["default"], "sparsity": 0.8},
        {"op_names": ["blocks.*"], "sparsity": 0.9},
        {"op_names": ["head"], "exclude": True},
    ]
    printed = LevelPruner(model, rules).explain()
    shown = blocks("docs/config.md", "text")[0]
    assert [line.split() for line in shown.splitlines()] == [
        x.split() for x in printed.splitlines()
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    text = (REPO / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text):
        target = link[0] or link[1]
        if not target.startswith("http"):
            assert ((REPO / page).parent / target).exists(), f"{page}: {target}"
