"""Run the Python of several pages in one process, each in a module and a folder of its own.

``python run_pages.py folder < pages.json`` with ``{page: [{file name: text}, are warnings errors]}``
writes ``folder/results.json``: what each ``page.py`` printed, and the traceback if it failed. One process,
because importing torch, Keras and TensorFlow anew for each page takes longer than the pages.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path


def run(files, is_strict, folder):
    folder.mkdir()
    os.chdir(folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        if not is_strict:
            warnings.simplefilter("default")
        try:
            runpy.run_path("page.py", run_name=f"page_{folder.name}")
        except Exception:
            return {"printed": printed.getvalue(), "failure": traceback.format_exc()}
    return {"printed": printed.getvalue(), "failure": ""}


def main(folder):
    pages = json.load(sys.stdin)
    results = {page: run(*settings, folder / Path(page).stem) for page, settings in pages.items()}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
