"""The page on language models, run on the real model and a real text."""

import re

import pytest
from real_pages import printed_by
from test_pages import blocks, words

PAGE = "docs/language_models.md"
PREPARE = """
import numpy as np
from language import load_stories, windows

load_stories().save_pretrained("stories15M")
np.save("tokens.npy", windows(24, 129).numpy())
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    return printed_by(
        PAGE, tmp_path_factory.mktemp("language"), PREPARE, ("transformers", "onnxruntime")
    )


@pytest.mark.slow
def test_the_page_runs_on_the_real_model_and_prints_what_it_shows(printed):
    lines = [words(line) for line in printed.splitlines()]
    for line in "".join(blocks(PAGE, "text")).splitlines():
        assert words(line) in lines, f"the page shows {line!r}"


@pytest.mark.slow
def test_four_bits_are_small_tied_and_executed_as_simulated(printed):
    found = dict(re.findall(r"^perplexity (\w+ ?\w*): ([\d.]+)$", printed, flags=re.MULTILINE))
    in_float, simulated, executed = (float(x) for x in found.values())
    assert simulated < 1.17 * in_float and abs(executed / simulated - 1) < 0.01
    assert float(re.search(r"stories.onnx: ([\d.]+) MB", printed)[1]) < 10
    assert "43 of 55 layers run on integers" in printed
