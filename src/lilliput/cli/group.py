"""Run a command line, and turn every possible end into a message and an exit code."""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lilliput.cli.command import InterruptedByUserError
from lilliput.cli.failures import BAD_INPUT, INTERRUPTED, Failure, explain
from lilliput.errors import nearest

# typer does not export it; depending on the version, it comes from click or from a copy of click.
USAGE_ERROR: Any = typer.BadParameter.__base__
RESUMABLE = ("run", "auto", "repair", "prune", "quantize", "speedup", "export", "analyze")


class Commands(TyperGroup):
    """The commands of ``lilliput``, in the order in which they were registered."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        """Run a command line and exit; other arguments are those of typer's own runner."""
        given = list(sys.argv[1:] if args is None else args)
        sys.exit(self.run(given))

    def run(self, given: list[str]) -> int:
        """Run a command line and return the exit code."""
        try:
            code = super().main(given, prog_name="lilliput", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except InterruptedByUserError as error:
            return _say(_interrupted(given, str(error)), given)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except USAGE_ERROR as error:
            return _say(_usage(error, self._path(given)), given)
        except Exception as error:
            if "--traceback" in given or os.environ.get("LILLIPUT_TRACEBACK", "0") not in ("", "0"):
                traceback.print_exception(error)
            return _say(explain(error, given), given)

    def _path(self, given: list[str]) -> str:
        """Return the command named by a command line, as far as it is valid."""
        path, known = "lilliput", dict(self.commands)
        for word in given:
            if word not in known:
                break
            path, known = f"{path} {word}", dict(getattr(known[word], "commands", {}))
        return path


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command line with an app whose group is :class:`Commands`; return the exit code."""
    group: Any = get_command(app)
    return int(group.run(list(sys.argv[1:] if arguments is None else arguments)))


def _say(failure: Failure, given: list[str]) -> int:
    if "--json" in given:
        print(json.dumps(failure.to_dict(), indent=2))
    text = "\n".join(failure.lines)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = text.replace("error:", "\x1b[1;31merror:\x1b[0m", 1)
    print(text, file=sys.stderr)
    return failure.code


def _interrupted(given: list[str], what: str = "") -> Failure:
    """Report what was kept and how to continue."""
    start = f"interrupted; {what}" if what else "interrupted"
    lines = [start]
    if given and given[0] in RESUMABLE:
        again = given if "--resume" in given else [*given, "--resume"]
        lines = [f"{start}; continue with: lilliput {shlex.join(again)}"]
    return Failure(INTERRUPTED, lines, {"kind": "Interrupted"})


def _usage(error: Any, path: str) -> Failure:
    context = error.ctx
    text = _usage_text(error, context)
    lines = [f"error: {text}"]
    if context:
        lines.append(" ".join(context.get_usage().split()).replace("Usage:", "usage:", 1))
    lines.append(f"help: {path} --help")
    return Failure(BAD_INPUT, lines, {"kind": "UsageError"})


def _usage_text(error: Any, context: Any) -> str:
    """Return typer's message, with the nearest name if a name is unknown."""
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and context:
        names = [name for p in context.command.get_params(context) for name in p.opts]
        known = [name for name in names if name.startswith("-")]
        hint = nearest(option, known) or f" It has: {', '.join(known)}."
        return f"{context.command_path} has no option {option!r}.{hint}"
    text = str(error.format_message())
    if text.startswith("No such command") and context:
        known = context.command.list_commands(context)
        name = text.split("'")[1] if "'" in text else ""
        hint = nearest(name, known) or f" There are: {', '.join(known)}."
        return f"{context.command_path} has no command {name!r}.{hint}"
    return text if text.endswith((".", "?")) else f"{text}."
