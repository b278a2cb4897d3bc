"""The command starts quickly, without frameworks, and reads well without a terminal."""

import re
import subprocess
import sys

import pytest

BOXES = re.compile("[\x1b\u2500-\u257f]")
COMMANDS = [
    "demo",
    "run",
    "auto",
    "prune",
    "quantize",
    "speedup",
    "export",
    "repair",
    "inspect",
    "analyze",
    "benchmark",
    "compare",
    "report",
]
COMMANDS += ["list", "doctor", "config"]


def in_a_fresh_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_imports_no_framework():
    heavy = [
        "torch",
        "keras",
        "tensorflow",
        "jax",
        "numpy",
        "onnx",
        "onnxruntime",
        "lilliput.config",
    ]
    code = (
        "import sys\nfrom lilliput.cli import main\n"
        "for words in (['--help'], ['prune', '--help'], ['config', 'check', '--help']):\n"
        "    try:\n        main(words)\n    except SystemExit as done:\n        assert not done.code\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert in_a_fresh_process(code).endswith("[]\n")


def test_list_and_config_import_no_framework():
    code = (
        "import sys\nfrom lilliput.cli import main\n"
        "for words in (['list'], ['config', 'schema', 'agp'], ['doctor']):\n"
        "    try:\n        main(words)\n    except SystemExit as done:\n        assert not done.code\n"
        "print([m for m in ('torch', 'keras', 'tensorflow', 'jax') if m in sys.modules])"
    )
    assert in_a_fresh_process(code).endswith("[]\n")


WITHOUT_THE_EXTRA = (
    "import sys\nsys.modules['typer'] = sys.modules['rich'] = None\nsys.stderr = sys.stdout\n"
    "from lilliput.cli import main\n"
    "try:\n    main({words!r})\nexcept SystemExit as done:\n    print(done.code)"
)


@pytest.mark.parametrize("words", [[], ["list"], ["prune", "digits:build"]])
def test_without_the_extra_one_line_says_what_to_install(words):
    expected = "error: the command line needs: pip install 'lilliput[cli]'\n3\n"
    assert in_a_fresh_process(WITHOUT_THE_EXTRA.format(words=words)) == expected


def test_doctor_works_without_the_extra(lilliput):
    import json

    said = in_a_fresh_process(WITHOUT_THE_EXTRA.format(words=["doctor"]))
    assert said.endswith("\n0\n") and "pip install 'lilliput[cli]'" not in said.splitlines()[0]
    assert said.removesuffix("0\n") == lilliput("doctor").out
    data = in_a_fresh_process(WITHOUT_THE_EXTRA.format(words=["doctor", "--json"]))
    found, here = json.loads(data.removesuffix("0\n")), json.loads(lilliput("doctor", "--json").out)
    assert found == {**here, "threads": None}  # no framework was imported


def test_an_error_inside_typer_is_shown_as_what_it_is():
    code = (
        "import sys\nsys.modules['typer.core'] = None\n"
        "from lilliput.cli import main\n"
        "try:\n    main([])\nexcept ImportError as error:\n    print(error.name)"
    )
    assert in_a_fresh_process(code) == "typer.core\n"


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "lilliput", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "lilliput 0.1.0\n")


def test_no_arguments_show_the_help(lilliput):
    ended = lilliput()
    assert ended.code == 0
    assert all(f"  {name} " in ended.out for name in COMMANDS)
    assert lilliput("config").code == 0


@pytest.mark.parametrize(
    "name", [*COMMANDS[:-1], "config check", "config explain", "config migrate"]
)
def test_every_command_has_the_common_options(lilliput, name):
    ended = lilliput(*name.split(), "--help")
    assert ended.code == 0
    assert all(option in ended.out for option in ("--json", "--quiet", "--dry-run", "--traceback"))
    works = name in ["run", "auto", "repair", "prune", "quantize", "speedup", "export", "analyze"]
    assert ("--resume" in ended.out, "--seed" in ended.out) == (works, works)


def test_plain_text_has_no_colours_and_no_boxes(lilliput):
    for words in (["list"], ["doctor"], ["--help"], ["prune", "--help"], ["prun"]):
        ended = lilliput(*words)
        assert not BOXES.search(ended.out + ended.err)


def test_names_are_never_broken_in_a_pipe():
    from lilliput.cli.table import Table

    name = "stages.0.blocks.11.attention.query_key_value_projection." * 3
    table = Table(["layer", ">parameters", "why"], [[name, "1,728", "one\ntwo"], ["b", "2", ""]])
    head, first, second, last = str(table).splitlines()
    assert name in first and first.endswith("1,728  one") and second.strip() == "two"
    assert head.index("parameters") + len("parameters") == last.index("2") + 1


def test_a_terminal_gets_lines(monkeypatch):
    import io

    from lilliput.cli.table import Table, show

    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    show(Table(["a"], [["b"]]), screen)
    assert "─" in screen.getvalue() and "\x1b[3" not in screen.getvalue()
