"""The options and arguments that several commands share, each declared once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.errors import ConfigError

_FUNCTION = "module:function"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:factory that returns the trained model, or a folder of an earlier run.",
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Config list as YAML or JSON: see docs/config.md."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the algorithm; repeatable."),
]
OpTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--op-types",
        metavar="TYPE",
        help="Layer classes, such as Conv2d; repeatable. By default, all supported ones.",
    ),
]
AssumeVnni = Annotated[
    bool | None,
    typer.Option(
        "--assume-vnni/--no-assume-vnni",
        help="Whether the CPUs that will run the .onnx file have VNNI; by default, as this CPU.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar=_FUNCTION, help="Returns the batches: (inputs, targets)."),
]
Evaluate = Annotated[
    str | None,
    typer.Option("--evaluate", metavar=_FUNCTION, help="(model) → a number, higher is better."),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        metavar=_FUNCTION,
        help="Returns example inputs; by default those of the first batch.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="1,3,32,32",
        help="Instead of --inputs: random inputs of this shape; 'x' works as well as ','.",
    ),
]
Train = Annotated[
    str | None,
    typer.Option(
        "--train", metavar=_FUNCTION, help="(model, optimizer, batches) → trains one epoch."
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="NAME", help="cross_entropy, mse or module:function, instead of --train."
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar=_FUNCTION, help="(model) → optimizer; SGD by default."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder for checkpoints and results."),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run in the same folder.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of all random numbers.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow a run given as MODEL to import its model's code from where it was created.",
    ),
]


def check_folder_of(file: Path) -> None:
    """Raise if ``--output`` names a file in a missing folder."""
    if not file.parent.is_dir():
        raise ConfigError(f"--output {file}: there is no folder {file.parent}; create it first.")


@dataclass(frozen=True)
class Evaluation:
    """The user's functions with which a recipe measures."""

    data: Data = None
    evaluate: Evaluate = None
    inputs: Inputs = None

    def to_dict(self) -> dict[str, Any]:
        """Return the given functions."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Training(Evaluation):
    """The user's functions with which a recipe measures and trains."""

    train: Train = None
    loss: Loss = None
    optimizer: Optimizer = None


@dataclass(frozen=True)
class Run:
    """Where and how the steps of a recipe run."""

    output: Output = None
    resume: Resume = False
    seed: Seed = None
    trust: Trust = False


@dataclass(frozen=True)
class SavedRun(Run):
    """The same for a recipe created from a command line."""

    save_recipe: Annotated[
        Path | None,
        typer.Option("--save-recipe", metavar="FILE", help="Also save this command as a recipe."),
    ] = None
