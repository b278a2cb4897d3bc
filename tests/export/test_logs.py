"""TensorFlow's logs of a conversion are dropped, and nothing else."""

import os

import pytest

from lilliput.frameworks.logs import drop_logs

LOGS = (
    "W0000 00:00:1794864907.234185    7643 flatbuffer_export.cc:4248] The following operation(s) need "
    "TFLite custom op implementation(s):\nCustom ops: DebugIdentityV2\nDetails:\n"
    '\ttf.DebugIdentityV2(tensor<?x2xf32>) -> (tensor<?x2xf32>) : {device = ""}\n'
    "See instructions: https://www.tensorflow.org/lite/guide/ops_custom\n"
    "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"
)
OTHERS = "E0000 00:00:1.2    7643 a.cc:1] an error of TensorFlow\nwhat the user prints\n"


def test_logs_are_dropped_and_other_lines_stay(capfd):
    with drop_logs():
        os.write(2, (LOGS + OTHERS + LOGS).encode())
    assert capfd.readouterr().err == OTHERS


def test_after_an_error_everything_is_shown(capfd):
    with pytest.raises(ValueError, match="failed"), drop_logs():
        os.write(2, LOGS.encode())
        raise ValueError("failed")
    assert capfd.readouterr().err == LOGS


def test_standard_error_is_as_it_was(capfd):
    with drop_logs(), drop_logs():
        os.write(2, b"inside\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "inside\nafter\n"
