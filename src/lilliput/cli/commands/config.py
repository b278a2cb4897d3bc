"""``lilliput config``: check, explain and migrate config lists and recipes, and print their schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli.command import command
from lilliput.cli.migrate import Algorithm, migrate
from lilliput.cli.rules import check_rules, is_recipe
from lilliput.cli.table import Table
from lilliput.cli.terminal import Terminal, some
from lilliput.errors import ConfigError

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A config list or a recipe, YAML or JSON.")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="module:factory", help="The model it applies to."),
]


def check(
    terminal: Terminal, file: File, algorithm: Algorithm = None, model: ModelOption = None
) -> None:
    """Check a config list or a recipe, and list all its mistakes."""
    if terminal.dry_run:
        terminal.would([f"read {file}", "check every key of it"])
        return
    if is_recipe(file):
        from lilliput.recipes import load_recipe
        from lilliput.recipes.functions import find_functions

        recipe = load_recipe(file)
        find_functions(recipe)
        steps = [step.verb for step in recipe.steps]
        text = f"ok: a recipe of {len(steps)} steps: {', '.join(steps)}"
        terminal.result({"ok": True, "kind": "recipe", "steps": steps}, text)
        return
    if model is not None:
        explain(terminal, file, model, algorithm)
        return
    count, fits = check_rules(file, algorithm)
    text = f"ok: {count} rule{'s' if count > 1 else ''}, for {some(fits, 8)}"
    terminal.result({"ok": True, "kind": "config list", "rules": count, "fits": fits}, text)


def explain(
    terminal: Terminal, file: File, model: ModelOption = None, algorithm: Algorithm = None
) -> None:
    """Show which rule selects which layer of a model, and what it requests."""
    if is_recipe(file):
        _explain_recipe(terminal, file, model)
        return
    if model is None:
        raise ConfigError("--model is missing: explaining rules requires the layers they select.")
    if algorithm is None:
        fits = check_rules(file, None)[1]
        if len(fits) != 1:
            raise ConfigError(f"--algorithm is missing: the rules of {file} fit {some(fits, 8)}.")
        algorithm = fits[0]
    from lilliput.registry import find_algorithm

    cls = find_algorithm(algorithm)
    if terminal.dry_run:
        terminal.would([f"load {model}", f"bind {cls.__name__} to it", "show each layer's rule"])
        return
    from lilliput.cli.models import open_model

    selection = cls(open_model(model)[0], str(file)).selection
    rows = [_row(decision) for decision in selection.decisions]
    columns = ["layer", "type", "weight", "decision", "asks for"]
    cells = [[row[k] for k in ("layer", "type", "shape", "decision", "asks")] for row in rows]
    chosen = sum(decision.is_chosen for decision in selection.decisions)
    summary = f"{chosen} of {len(rows)} layers are compressed by {cls.__name__}"
    terminal.result({"algorithm": cls.__name__, "layers": rows}, Table(columns, cells), summary)


def _explain_recipe(terminal: Terminal, file: Path, model: str | None) -> None:
    from lilliput.recipes import load_recipe, plan

    recipe = load_recipe(file)
    if model is not None:
        recipe = recipe.model_copy(update={"model": model})
    if terminal.dry_run:
        terminal.would([f"load {recipe.model}", "match the rules of every step with its layers"])
        return
    planned = plan(recipe)
    terminal.result(planned.to_dict(), str(planned))


def _row(decision: Any) -> dict[str, Any]:
    layer = decision.layer
    asks = {k: v for k, v in layer.config.items() if k not in ("op_types", "op_names")}
    text = ", ".join(f"{key}={value}" for key, value in asks.items())
    return {
        "layer": layer.name,
        "type": layer.type,
        "shape": "×".join(map(str, layer.shape)) or "–",
        "decision": decision.why,
        "asks": text if decision.is_chosen else "",
        "rule": decision.rule,
        "is_chosen": decision.is_chosen,
    }


def schema(
    terminal: Terminal,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An algorithm, or 'recipe' or 'report'.")
    ],
) -> None:
    """Print the JSON schema of an algorithm's config list, of recipes or of report.json."""
    if terminal.dry_run:
        terminal.would([f"print the JSON schema of {name}"])
        return
    found = _schema_of(name)
    import json

    terminal.result(found, json.dumps(found, indent=2))


def _schema_of(name: str) -> dict[str, Any]:
    if name == "recipe":
        from lilliput.recipes import Recipe

        return dict(Recipe.model_json_schema())
    if name == "report":
        from lilliput.report.document import Report

        return Report.json_schema()
    from lilliput.config.parse import schema
    from lilliput.registry import find_algorithm

    return schema(find_algorithm(name, others=("recipe", "report")).rule)


def register(app: typer.Typer, is_rich: bool) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Check, explain and migrate configs; print schemas.",
        rich_markup_mode="rich" if is_rich else None,
        invoke_without_command=True,
    )
    group.callback()(_start)
    for function in (check, explain, schema, migrate):
        command(group, function.__name__)(function)
    app.add_typer(group, name="config", rich_help_panel="Look")


def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
