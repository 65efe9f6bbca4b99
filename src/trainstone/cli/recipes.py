"""trainstone recipes: list the recipes, show one with its documentation, or translate an old command line."""

import shlex
from typing import Annotated

import typer

from trainstone.cli import options
from trainstone.cli.render.output import print_json
from trainstone.errors import ConfigError
from trainstone.text import printable, printable_lines

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME|OLD FLAGS", help="Recipe to show; or, after --from ORIGINAL --, the old command line."
    ),
]
Original = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="ORIGINAL",
        help="Translate an old command line of one of these programs into a recipe: mlperf-resnet50, mlperf-ssd, tbd, "
        "sc22 or wmlce.",
    ),
]


def recipes(name: Names = [], original: Original = None, as_json: options.Json = False) -> None:  # noqa: B006
    """List the recipes, show one with its documentation, or translate an old command line into one."""
    from trainstone.config.load import list_shipped, load_config, load_system

    if original is not None:
        from trainstone.originals.command_line.translate import format_recipe_file, translate

        found = translate(original, name)
        if as_json:
            resolved = {"config": found.config} if found.config else {}
            print_json({"verb": found.verb, "command": found.command, **resolved, "notes": found.notes})
        else:
            print(printable_lines(format_recipe_file(found)))
        return
    if len(name) > 1:
        raise ConfigError(
            f"{len(name)} recipes: {' '.join(name)}; expected one",
            hint="to translate an old command line: trainstone recipes --from wmlce -- ...",
        )
    if name:
        show_recipe(name[0], as_json=as_json)
        return
    configs = [load_config(shipped) for shipped in list_shipped("recipes")]
    systems_of: dict[str, list[str]] = {}  # by recipe name: the shipped systems that change it
    for system in list_shipped("systems"):
        for recipe in load_system(system).recipe:
            systems_of.setdefault(recipe, []).append(system)
    if as_json:
        rows = [{"name": c.name, "version": c.version, "summary": c.summary} for c in configs]
        print_json([row | {"systems": systems_of.get(str(row["name"]), [])} for row in rows])
        return
    width = max(len(config.name) for config in configs)
    for config in configs:
        print(printable(f"{config.name:<{width}}  v{config.version}  {config.summary}"))
        if config.name in systems_of:
            print(f"{'':<{width}}      systems: {', '.join(systems_of[config.name])}")
    print("\nShow one: trainstone recipes NAME      Run one: trainstone bench|train NAME [--system SYSTEM]")
    print("From an old command: trainstone recipes --from ORIGINAL -- OLD FLAGS > FILE.toml")


def show_recipe(name: str, *, as_json: bool) -> None:
    """Print the file of a recipe, then every key with its value, its allowed values and its meaning."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from trainstone.config.load import format_value, list_keys, load_config, read_source
    from trainstone.originals.command_line.translate import read_key

    config = load_config(name)
    if as_json:
        print_json(config)
        return
    text, _ = read_source("recipes", name)
    print(printable_lines(text))
    console = Console(highlight=False)
    for key, allowed, _, meaning in list_keys():
        value = read_key(config, key)
        shown = "(not set)" if value is None else printable(format_value(value))
        console.print(Text.assemble((key, "bold"), f" = {shown}  ", (allowed, "dim")))
        console.print(Padding(Text(meaning), (0, 0, 0, 4)))
    print(f"\nChange one: trainstone bench {printable(shlex.quote(name))} --set train.batch_size=8")
