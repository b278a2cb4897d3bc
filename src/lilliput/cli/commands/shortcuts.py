"""``prune``, ``quantize``, ``speedup`` and ``export``: small recipes in the form of commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli import options
from lilliput.cli.command import command
from lilliput.cli.commands.run import execute
from lilliput.cli.renaming import as_options
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError
from lilliput.export.targets.table import SUFFIXES, target_for

_ENDINGS = ", ".join(SUFFIXES)

Finetune = Annotated[int, typer.Option("--finetune", min=0, help="Epochs of training afterwards.")]


@dataclass(frozen=True)
class Rules:
    """The options of a pruner or quantizer, and of the training with it."""

    op_types: options.OpTypes = None
    config: options.Config = None
    option: options.Options = None
    epochs: Annotated[
        int, typer.Option("--epochs", min=0, help="Epochs of training with compression.")
    ] = 0

    def to_step(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Return a step with one rule, or with the rules of a file."""
        asked = _nonempty(options=_parse_options(self.option), epochs=self.epochs)
        return {**_rules(self.config, self.op_types, rule), **asked}


@dataclass(frozen=True)
class File:
    """Options of the exported file."""

    export: Annotated[
        str | None,
        typer.Option("--export", metavar="FILE", help=f"Also write a file: {_ENDINGS}."),
    ] = None
    assume_vnni: options.AssumeVnni = None

    def to_steps(self) -> list[dict[str, Any]]:
        """Return the step that writes it, if requested."""
        if self.export is None and self.assume_vnni is not None:
            raise ConfigError("--assume-vnni applies to the file written by --export; pass both.")
        return [] if self.export is None else [_export_step(self.export, self.assume_vnni)]


def prune(
    terminal: Terminal,
    model: options.Model,
    training: options.Training,
    rules: Rules,
    file: File,
    run: options.SavedRun,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="A pruner: see 'lilliput list'.")
    ] = "l1",
    sparsity: Annotated[
        float | None, typer.Option("--sparsity", "-s", help="Fraction to remove, in [0, 1).")
    ] = None,
    speedup: Annotated[
        bool, typer.Option("--speedup", help="Cut the masked channels out of the model.")
    ] = False,
    finetune: Finetune = 0,
) -> None:
    """Remove weights or channels, optionally with training.

    Masks alone make nothing smaller; --speedup cuts out masked channels.
    """
    rule = {} if sparsity is None else {"sparsity": sparsity}
    steps = [{"prune": algorithm, **rules.to_step(rule)}]
    steps += [{"speedup": {}}] if speedup else []
    steps += [*_finetune(finetune), *file.to_steps()]
    _go(terminal, "prune", {"model": model, **training.to_dict(), "steps": steps}, run)


def quantize(
    terminal: Terminal,
    model: options.Model,
    training: options.Training,
    rules: Rules,
    file: File,
    run: options.SavedRun,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="A quantizer: see 'lilliput list'.")
    ] = "ptq",
    bits: Annotated[
        int | None, typer.Option("--bits", "-b", min=1, max=16, help="Bits, 8 by default.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option("--batches", min=1, help="Number of batches for calibration.")
    ] = None,
) -> None:
    """Quantize to integers, by calibration or by training.

    ptq calibrates on --data; qat, lsq and others train with simulated quantization for some --epochs.
    """
    rule = {} if bits is None else {"quant_bits": bits}
    step = {"quantize": algorithm, **rules.to_step(rule), **_nonempty(batches=batches)}
    steps = [step, *file.to_steps()]
    _go(terminal, "quantize", {"model": model, **training.to_dict(), "steps": steps}, run)


def speedup(
    terminal: Terminal,
    model: options.Model,
    training: options.Training,
    file: File,
    run: options.SavedRun,
    extend_masks: Annotated[
        bool,
        typer.Option(
            "--extend-masks", help="Also remove channels for which only the filters are zero."
        ),
    ] = False,
    finetune: Finetune = 0,
) -> None:
    """Cut masked channels out of a model, and check it."""
    first = {"speedup": {"extend_masks": True} if extend_masks else {}}
    steps = [first, *_finetune(finetune), *file.to_steps()]
    _go(terminal, "speedup", {"model": model, **training.to_dict(), "steps": steps}, run)


def export(
    terminal: Terminal,
    model: options.Model,
    file: Annotated[str, typer.Argument(metavar="FILE", help=f"A name that ends in {_ENDINGS}.")],
    evaluation: options.Evaluation,
    run: options.SavedRun,
    option: options.Options = None,
    assume_vnni: options.AssumeVnni = None,
) -> None:
    """Write a model as a file, execute it, and compare."""
    step = _export_step(file, assume_vnni, _parse_options(option))
    _go(terminal, "export", {"model": model, **evaluation.to_dict(), "steps": [step]}, run)


def _go(terminal: Terminal, verb: str, asked: dict[str, Any], run: options.SavedRun) -> None:
    """Run the recipe of a command; report problems by the names of the options."""
    from lilliput.recipes import load_recipe

    recipe = {"lilliput": 1, **asked}
    try:
        load_recipe(recipe)
        if run.save_recipe is not None and not terminal.dry_run:
            seed = {} if run.seed is None else {"seed": run.seed}
            _write_recipe(recipe | seed, run.save_recipe)
        execute(terminal, recipe, run, f"{verb}-run")
    except ConfigError as error:
        raise as_options(error, f"lilliput {verb}") from error.__cause__


def _write_recipe(recipe: dict[str, Any], path: Path) -> None:
    """Write a recipe as JSON, or as YAML, which includes JSON."""
    from lilliput.files import write_atomically

    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"--save-recipe {path}: expected a name that ends in .yaml or .json.")
    write_atomically(path, f"{json.dumps(recipe, indent=2)}\n".encode())


def _rules(config: str | None, op_types: list[str] | None, rule: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config`` of a step from a file, or from the options."""
    if config is not None:
        if op_types or rule:
            raise ConfigError(
                "--config and the options --sparsity, --bits and --op-types are alternatives; put "
                "everything into the file, or omit --config."
            )
        return {"config": config}
    return {"config": [{"op_types": op_types or ["default"], **rule}]} if op_types or rule else {}


def _finetune(epochs: int) -> list[dict[str, Any]]:
    return [{"finetune": {"epochs": epochs}}] if epochs else []


def _export_step(
    file: str, assume_vnni: bool | None, given: dict[str, Any] | None = None
) -> dict[str, Any]:
    target = target_for(file)
    if assume_vnni is not None:
        given = {**(given or {}), "assume_vnni": assume_vnni}
    return {"export": target.name, "file": file, **_nonempty(options=given)}


def _parse_options(given: list[str] | None) -> dict[str, Any]:
    """Return ``key=value`` pairs; a value is JSON if it is valid JSON, otherwise text."""
    parsed: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--option {text!r}: expected KEY=VALUE, such as adaround=true.")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


def _nonempty(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (prune, quantize, speedup, export):
        command(app, function.__name__, "Compress")(function)
