"""Flags that mean the same in every verb that runs work."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.errors import ConfigError
from trainstone.log import configure_terminal
from trainstone.machine.allocator import restart_keeping_memory
from trainstone.machine.ranks import read_rank

if TYPE_CHECKING:
    from trainstone.config.schema import Config

Recipe = Annotated[str, typer.Argument(help="A recipe's name, a .toml file, or the config.toml of a run.")]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe key; repeatable.")]
SystemName = Annotated[str | None, typer.Option("--system", help="Fit the recipe to this system: a name or a file.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Train on the images of this data set.", show_default="synthetic batches"),
]
Out = Annotated[Path, typer.Option("--out", help="Folder that run folders are made in.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Time budget of the measured steps.", show_default="the recipe's: 60")
]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Repeat with new seeds; the interval is then between runs.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of weights and data.", show_default="the recipe's")]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps ...", show_default="the recipe's: auto")
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse what would otherwise be adapted with a finding.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and commands; run nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice: everything.")]
Quiet = Annotated[int, typer.Option("--quiet", "-q", count=True, help="No progress, errors only.")]


def refuse_ranks(verb: str) -> None:
    """End where a launcher has started several: each would do the whole work by itself."""
    if read_rank().world > 1:
        raise ConfigError(
            f"{verb} measures one process; here {read_rank().world} ranks would each make a run of its own",
            hint="start it without a launcher; of many ranks bench, profile, train and eval make one run together",
        )


def prepare_process(config: "Config | None" = None, *, verbose: int = 0, quiet: int = 0) -> None:
    """Restart with freed memory kept if the configuration of what runs in this process says so; log to stderr."""
    if config and config.engine.keep_memory:
        restart_keeping_memory()
    configure_terminal(verbose=verbose, quiet=quiet)


def collect_flags(values: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Return the recipe keys that flags are short for, where they are given; None takes a key away."""
    # A recipe may name another source.
    given: dict[str, Any] = {"data.root": str(data.absolute()), "data.source": "files"} if data is not None else {}
    given |= {key: value for key, value in values.items() if value is not None}
    if "measure.seconds" in given:  # a recipe may count steps: whoever names a time means the time
        given.setdefault("measure.iterations", None)
    return given
