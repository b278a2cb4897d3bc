"""The ten lines of the page, on a trained network: most photos keep their class at 70 % of the MACs."""

import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def real_network():
    """Return EfficientNet-Lite0, photos to calibrate with and others to test on, or skip."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("PIL")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from trained_nets import CASES

        case = CASES["lite0"]()
    except (SystemExit, OSError, ImportError) as error:
        pytest.skip(f"the network or its photos cannot be had: {error}")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return case.model, case.calibration, case.inputs[0][:200]


@pytest.mark.slow
def test_the_lines_of_the_page_keep_what_lite0_sees():
    model, photos, others = real_network()
    page = (ROOT / "docs" / "pruning_without_training.md").read_text(encoding="utf-8")
    lines = re.search(r"```py\n(.*?)```", page, re.DOTALL)[1]
    with torch.no_grad():
        wanted = torch.cat([model(x).argmax(1) for x in others.split(20)])
    names = {"model": model, "photos": photos}
    exec(compile(lines, "page", "exec"), names)
    small = names["model"]
    with torch.no_grad():
        received = torch.cat([small(x).argmax(1) for x in others.split(20)])
    assert float((received == wanted).double().mean()) > 0.7
    assert small._blocks[14]._expand_conv.out_channels < 1152
