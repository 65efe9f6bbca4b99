"""trainstone recipes: list them, or show one with the documentation of its keys."""

import shlex
from typing import Annotated

import typer

from trainstone.cli import options


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one.", show_default=False)] = None,
    as_json: options.Json = False,
) -> None:
    """List the recipes, or show one with its documentation."""
    from trainstone.cli.output import print_json
    from trainstone.config.load import list_shipped, load_config
    from trainstone.text import printable

    if name is not None:
        show_recipe(name, as_json=as_json)
        return
    configs = [load_config(shipped) for shipped in list_shipped("recipes")]
    if as_json:
        print_json([{"name": c.name, "version": c.version, "summary": c.summary} for c in configs])
        return
    width = max(len(config.name) for config in configs)
    for config in configs:
        print(printable(f"{config.name:<{width}}  v{config.version}  {config.summary}"))
    print("\nShow one: trainstone recipes NAME      Run one: trainstone bench|train NAME")


def show_recipe(name: str, *, as_json: bool) -> None:
    """Print a recipe's file, then every key with its value here, what is allowed, and what it means."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from trainstone.cli.output import print_json
    from trainstone.config.load import format_value, list_keys, load_config, read_source
    from trainstone.text import printable, printable_lines

    config = load_config(name)
    if as_json:
        print_json(config.model_dump(mode="json", exclude_none=True))
        return
    text, _ = read_source("recipes", name)
    print(printable_lines(text))
    console = Console(highlight=False)
    for key, allowed, _, meaning in list_keys():
        value = config
        for part in key.split("."):
            value = getattr(value, part)
        told = "(not set)" if value is None else printable(format_value(value))
        console.print(Text.assemble((key, "bold"), f" = {told}  ", (allowed, "dim")))
        console.print(Padding(Text(meaning), (0, 0, 0, 4)))
    print(f"\nChange one: trainstone bench {printable(shlex.quote(name))} --set train.batch_size=8")
