"""Drop harmless log lines of the C++ code of TensorFlow and ExecuTorch that look like failures.

Python's filters do not affect them, and TensorFlow reads its own log level once, when it is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from threading import RLock

# Info and warning lines, and those after the one about operators that we replace ourselves.
_HARMLESS = re.compile(
    rb"^(?:[IW]\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] .*|INFO: Created TensorFlow Lite .*|Custom ops: .*"
    rb"|\[\w+\.cpp:\d+\] .*|Details:|\ttf\..*|See instructions: https://www\.tensorflow\.org/.*)\n",
    re.MULTILINE,
)


_one_at_a_time = RLock()  # two threads would restore each other's redirection


@contextlib.contextmanager
def drop_logs() -> Iterator[None]:
    """Capture the process's standard error, then write all but such lines.

    After an error everything is written, since it may contain the reason.
    """
    with _one_at_a_time:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with tempfile.TemporaryFile() as held:
            sys.stderr.flush()
            os.dup2(held.fileno(), 2)
            is_done = False
            try:
                yield
                is_done = True
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                os.close(kept)
                held.seek(0)
                said = held.read()
                _write(_HARMLESS.sub(b"", said) if is_done else said)


@contextlib.contextmanager
def silenced(*loggers: str) -> Iterator[None]:
    """Drop such lines, warnings, and messages of these loggers below an error."""
    held = [logging.getLogger(name) for name in loggers]
    levels = [logger.level for logger in held]
    try:
        for logger in held:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), drop_logs():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(held, levels, strict=True):
            logger.setLevel(level)


def quiet_tensorflow() -> contextlib.AbstractContextManager[None]:
    """Silence TensorFlow, its converters and LiteRT."""
    return silenced("absl", "tensorflow", "tf2onnx")


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]
