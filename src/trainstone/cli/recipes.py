"""trainstone recipes: list them, show one with the documentation of its keys, or translate an old command line."""

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
        metavar="NAME|OLD FLAGS", help="Show this one; after --from ORIGINAL -- the old command line, pasted."
    ),
]
Original = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="ORIGINAL",
        help="Print the recipe that equals an old command: mlperf-resnet50, mlperf-ssd, tbd, sc22 or wmlce.",
    ),
]


def recipes(name: Names = [], original: Original = None, as_json: options.Json = False) -> None:  # noqa: B006
    """List the recipes, show one with its documentation, or turn an old command line into one."""
    from trainstone.config.load import list_shipped, load_config, load_system

    if original is not None:
        from trainstone.originals.command_line.translate import translate, write_file

        found = translate(original, name)
        if as_json:
            resolved = {"config": found.config} if found.config else {}
            print_json({"verb": found.verb, "command": found.command, **resolved, "notes": found.notes})
        else:
            print(printable_lines(write_file(found)))
        return
    if len(name) > 1:
        raise ConfigError(
            f"{len(name)} names: {' '.join(name)}; it shows one recipe",
            hint="an old command line: trainstone recipes --from wmlce -- ...",
        )
    if name:
        show_recipe(name[0], as_json=as_json)
        return
    configs = [load_config(shipped) for shipped in list_shipped("recipes")]
    places: dict[str, list[str]] = {}  # the shipped systems that change something of a recipe, by its name
    for system in list_shipped("systems"):
        for recipe in load_system(system).recipe:
            places.setdefault(recipe, []).append(system)
    if as_json:
        message = [{"name": c.name, "version": c.version, "summary": c.summary} for c in configs]
        print_json([one | {"systems": places.get(str(one["name"]), [])} for one in message])
        return
    width = max(len(config.name) for config in configs)
    for config in configs:
        print(printable(f"{config.name:<{width}}  v{config.version}  {config.summary}"))
        if config.name in places:
            print(f"{'':<{width}}      systems: {', '.join(places[config.name])}")
    print("\nShow one: trainstone recipes NAME      Run one: trainstone bench|train NAME [--system SYSTEM]")
    print("From an old command: trainstone recipes --from ORIGINAL -- OLD FLAGS > FILE.toml")


def show_recipe(name: str, *, as_json: bool) -> None:
    """Print a recipe's file, then every key with its value here, what is allowed, and what it means."""
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
        message = "(not set)" if value is None else printable(format_value(value))
        console.print(Text.assemble((key, "bold"), f" = {message}  ", (allowed, "dim")))
        console.print(Padding(Text(meaning), (0, 0, 0, 4)))
    print(f"\nChange one: trainstone bench {printable(shlex.quote(name))} --set train.batch_size=8")
