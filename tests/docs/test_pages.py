"""What the pages show is true: their Python runs, their output and their names exist."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lilliput

REPO = Path(lilliput.__file__).parent.parent.parent
RUN = ["README.md", "docs/config.md", "docs/custom_algorithms.md", "docs/migrating_from_nni.md"]
RUN += ["docs/train_save_export.md", "docs/sensitivity.md", "docs/choose_algorithm.md"]
RUN += ["docs/structured_pruning.md", "docs/channel_groups.md", "docs/quantization.md"]
RUN += ["docs/keras.md", "docs/migrating_from_tfmot.md", "docs/migrating_from_prune.md"]
RUN += ["docs/migrating_from_torch_pruning.md", "docs/tutorial.md", "docs/index.md"]
RUN += ["docs/receipt_and_report.md", "docs/recipes.md", "docs/training_libraries.md"]
RUN += ["docs/channels_are_labels.md", "docs/several_inputs.md", "docs/pruning_without_training.md"]
RUN += ["docs/distillation.md", "docs/targets.md", "docs/say_the_goal.md", "docs/compact_files.md"]
RUN += ["docs/factorization.md", "docs/many_machines.md"]
# run with the slow tests
LONG = ["docs/index.md", "docs/migrating_from_tfmot.md", "docs/sensitivity.md", "docs/recipes.md"]
LONG += ["docs/keras.md", "docs/training_libraries.md", "docs/say_the_goal.md"]
BEGIN_AS = {"docs/index.md": "docs/tutorial.md"}  # uses what the other page defines at first
TALKATIVE = {"docs/training_libraries.md"}  # other libraries warn here, of things of their own
NEEDS = {
    "docs/keras.md": ("keras",),
    "docs/migrating_from_tfmot.md": ("keras",),
    "docs/say_the_goal.md": ("scipy",),
    "docs/targets.md": ("openvino",),
    "docs/training_libraries.md": ("lightning", "transformers", "accelerate"),
}
SHOWN = ["docs/tutorial.md", "docs/index.md", "docs/recipes.md", "docs/receipt_and_report.md"]
PAGES = sorted(
    p.relative_to(REPO).as_posix() for p in [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md")]
)


def can_run(page):
    return all(find_spec(name) for name in NEEDS.get(page, ()))


def blocks(page, language):
    text = (REPO / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def files(page):
    """Return the files that a page shows under their names, and its Python as one more."""
    before = blocks(BEGIN_AS[page], "python")[:1] if page in BEGIN_AS else []
    text = (REPO / page).read_text(encoding="utf-8")
    named = r"^```\w+ title=\"([\w.]+)\"\n(.*?)^```"
    found = dict(re.findall(named, text, flags=re.DOTALL | re.MULTILINE))
    return found | {"page.py": "\n".join(before + blocks(page, "python"))}


@pytest.fixture(scope="module")
def results(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("pages")
    asked = {
        item.callspec.params["page"]
        for item in request.session.items
        if item.path == Path(__file__) and "results" in item.fixturenames
    }
    pages = {page: (files(page), page not in TALKATIVE) for page in RUN if page in asked}
    pages = {page: settings for page, settings in pages.items() if can_run(page)}
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-W", "ignore:__array__:DeprecationWarning"),
            *(str(Path(__file__).parent / "run_pages.py"), str(folder)),
        ],
        input=json.dumps(pages),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text(encoding="utf-8")), folder


def marked(pages):
    return [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in pages]


@pytest.mark.parametrize("page", marked(RUN))
def test_the_python_of_a_page_runs_from_top_to_bottom(page, results):
    found, folder = results
    if not can_run(page):
        pytest.skip(f"needs {', '.join(NEEDS[page])}")
    assert not found[page]["failure"], found[page]["failure"]
    for drawn in (folder / Path(page).stem).glob("*.svg"):
        shown = REPO / "docs" / "images" / drawn.name
        if shown.exists():
            assert drawn.read_text(encoding="utf-8") == shown.read_text(encoding="utf-8")


def words(line):
    return re.sub(r"[\d.,+\-÷×±%]+", " ", line).split()


@pytest.mark.parametrize("page", marked(SHOWN))
def test_the_output_shown_is_the_output_printed_but_for_numbers(page, results):
    printed = [words(line) for line in results[0][page]["printed"].splitlines()]
    for line in "".join(blocks(page, "text")).splitlines():
        if "smaller on disk" in line:
            continue  # the verdict on speed depends on the machine, and on how busy it is
        shown = words(line)
        if shown[:1] == ["latency"]:  # so does whether its ratio is called noisy
            assert shown in [x[: len(shown)] for x in printed], f"{page} shows {line!r}"
        else:
            assert shown in printed, f"{page} shows {line!r}"


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


def test_all_pages_that_hold_python_are_run():
    # examples of distributed training need several processes
    left_out = {"docs/distributed.md", "CONTRIBUTING.md"}
    left_out |= {"docs/language_models.md"}  # on a real model: test_language_models.py
    left_out |= {"docs/recurrent.md"}  # on real networks: test_recurrent.py
    left_out |= {"docs/int8_mobile.md"}  # likewise: test_int8_mobile.py
    left_out |= {"docs/hf_encoder.md"}  # on a real model: test_hf_encoder.py
    assert {page for page in PAGES if blocks(page, "python")} - set(RUN) <= left_out


def test_the_page_for_users_of_nni_names_every_old_key_and_class():
    from lilliput.compat.nni.config.keys import OLD_KEYS
    from lilliput.compat.nni.imports.tables import NAMES

    page = (REPO / "docs/migrating_from_nni.md").read_text(encoding="utf-8")
    classes = {*NAMES["pruners"], *NAMES["quantizers"], *NAMES["bases of 2019"]}
    assert not [key for key in OLD_KEYS if f"`{key}" not in page and f", `{key}" not in page]
    assert not [name for name in sorted(classes) if f"`{name}" not in page]


def test_the_recipes_shown_are_valid(tmp_path):
    from lilliput.recipes import load_recipe

    for page in ("README.md", "docs/recipes.md"):
        for text in blocks(page, "yaml"):
            if "steps:" in text and "lilliput:" in text:
                path = tmp_path / "recipe.yaml"
                path.write_text(text, encoding="utf-8")
                assert load_recipe(path).steps
