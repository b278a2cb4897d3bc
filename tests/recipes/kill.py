"""Runs a recipe in forks of this process: once to the end, and once killed by kill -9 at given moments.

python kill.py recipe.yaml folder moment [moment …], where a moment is the number of a unit, and
``+`` after it means in the middle of writing its checkpoint. Writes folder/whole and folder/killed.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from lilliput import store
from lilliput.recipes import run
from lilliput.report.build import build_report
from lilliput.speedup.channels import channel_groups
from lilliput.speedup.shrink import speedup  # noqa: F401  (imported before forking)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def work(recipe, folder, moment):
    """Run until a moment, and die there; without one, run to the end."""
    number, in_writing = int(moment.rstrip("+") or 0), moment.endswith("+")

    def progress(event):
        if event.number != number or event.seconds is not None:
            return
        if not in_writing:
            die()
        write = store.write_atomically

        def write_some(path, data):
            if Path(path).name != "run.json":  # the tensors are written, but nothing names them
                write(path, data)
                return
            Path(path).with_name(".run.json.0123456789abcdef.lilliput").write_bytes(
                data[: len(data) // 2]
            )
            die()

        store.write_atomically = write_some

    run(recipe, folder, resume=True, progress=progress)


def start(recipe, folder, moment):
    """Fork a process that works until a moment; return how it ended."""
    process = os.fork()
    if not process:
        try:
            work(recipe, folder, moment)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main():
    recipe, folder, *moments = sys.argv[1:]
    torch.set_num_threads(1)
    channel_groups(torch.nn.Linear(2, 2), torch.zeros(2, 2))  # so that much is imported once
    build_report().to_html()
    codes = [start(recipe, Path(folder) / "whole", "")]
    codes += [start(recipe, Path(folder) / "killed", moment) for moment in [*moments, ""]]
    if codes != [0, *[-signal.SIGKILL] * len(moments), 0]:
        raise SystemExit(f"the processes ended with {codes}")


if __name__ == "__main__":
    main()
