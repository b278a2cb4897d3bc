"""Drop what the C++ code of TensorFlow and ExecuTorch logs: it looks like a failure and is none.

Python's filters do not reach it, and TensorFlow's own level is read once, when it is imported.
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

# A line of information or warning, and what follows the one about operators that we replace ourselves.
_HARMLESS = re.compile(
    rb"^(?:[IW]\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] .*|INFO: Created TensorFlow Lite .*|Custom ops: .*"
    rb"|\[\w+\.cpp:\d+\] .*|Details:|\ttf\..*|See instructions: https://www\.tensorflow\.org/.*)\n",
    re.MULTILINE,
)


_one_at_a_time = RLock()  # of two threads, each would put back what the other had put there


@contextlib.contextmanager
def drop_logs() -> Iterator[None]:
    """Hold back what is written to the process's standard error, then write all but such lines.

    After an error everything is written: it may say why.
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
    """Drop such lines, warnings, and what these loggers say below an error."""
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
