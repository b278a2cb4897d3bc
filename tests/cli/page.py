"""The commands of docs/cli.md; ``python tests/cli/page.py`` runs them, and writes what they print."""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands_of(block):
    """Return the commands of a block; a line that ends in a backslash goes on."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def shown_commands():
    """Return every command on the page, without the name of the program."""
    text = PAGE.read_text(encoding="utf-8")
    found = [words for block in BLOCK.findall(text) for words in commands_of(block)]
    return [words[1:] for words in found if words[0] == "lilliput"]


@contextlib.contextmanager
def in_the_example():
    """Work in a copy of examples/recipe, with the files that the page writes about."""
    before = Path.cwd(), list(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "recipe")
        shutil.copytree(REPO / "examples" / "recipe", place)
        (place / "rules.yaml").write_text("- {op_types: [Conv2d], sparsity: 0.5}\n")
        (place / "old.yaml").write_text("- {support_type: [Conv2d], sparsity: 0.5}\n")
        (place / "wrong.yaml").write_text((place / "recipe.yaml").read_text().replace("agp", "apg"))
        os.chdir(place)
        sys.path.insert(0, str(place))
        try:
            yield place
        finally:
            os.chdir(before[0])
            sys.path[:] = before[1]


def output_of(run, words):
    """Run a command; return all it prints, as a terminal shows it."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = run(words)
    text = stream.getvalue().replace(sys.executable, "/usr/bin/python3").rstrip()
    return text + (f"\n(exit code {code})" if code else "")


def filled(run, text):
    """Return the page with the output of today."""

    def fill(match):
        shown = re.findall(r"^\$ .*?(?<!\\)$", match[1], flags=re.DOTALL | re.MULTILINE)
        parts = []
        for command, words in zip(shown, commands_of(match[1]), strict=True):
            output = output_of(run, words[1:]) if words[0] == "lilliput" else ""
            if words[0] == "cd":
                output = ""
            limit = 28 if "--json" in words or "schema" in words else 200
            lines = output.splitlines()
            lines = [*lines[:limit], "…"] if len(lines) > limit else lines
            parts.append("\n".join([command, *lines]))
        return "```console\n" + "\n\n".join(parts) + "\n```"

    return BLOCK.sub(fill, text)


def main():
    from typer.main import get_command

    from lilliput.cli.app import make_app

    run = get_command(make_app()).run
    text = PAGE.read_text(encoding="utf-8")
    with in_the_example():
        text = filled(run, text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
