"""The same recipes on Keras."""

import os
from pathlib import Path

import pytest

from lilliput.recipes import load_run, run

RECIPE = Path(__file__).parent / "project" / "dense.yaml"


class Stopped(Exception):
    """Raised by a progress function, as if somebody stopped the run."""


@pytest.mark.slow
def test_a_run_stopped_after_every_unit_ends_with_the_same_files(tmp_path, digest):
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for package in ("keras", "ai_edge_litert"):  # here: other tests do without importing them
        pytest.importorskip(package)
    events = []
    result = run(RECIPE, tmp_path / "whole", progress=events.append)
    assert result.receipt.after.metric > 0.6
    assert result.receipt.after.parameters < result.receipt.before.parameters
    assert load_run(tmp_path / "whole", trust=True).model.get_layer("first").units == 16

    def stop(event):
        if event.seconds is not None:
            raise Stopped

    for number in range(events[-1].total - 1):
        with pytest.raises(Stopped):
            run(RECIPE, tmp_path / "parts", resume=number > 0, progress=stop)
    run(RECIPE, tmp_path / "parts", resume=True, progress=False)
    whole, parts = (digest(tmp_path / name) for name in ("whole", "parts"))
    # A .keras file is an archive with the time of writing in it.
    assert {k: v for k, v in parts.items() if not k.endswith(".keras")} == {
        k: v for k, v in whole.items() if not k.endswith(".keras")
    }
