"""Command-line options shared by several verbs, with one meaning everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainstone.errors import ConfigError
from trainstone.log import configure_terminal
from trainstone.machine.allocator import restart_keeping_memory
from trainstone.machine.ranks import read_rank

if TYPE_CHECKING:
    from trainstone.config.schema import Config

RECIPE = "from the recipe"
Recipe = Annotated[str, typer.Argument(help="Recipe name, recipe file (.toml), or the config.toml of a run.")]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set a recipe key (repeatable).")]
SystemName = Annotated[
    str | None, typer.Option("--system", help="Apply the settings of this system: a shipped name or a .toml file.")
]
Data = Annotated[Path | None, typer.Option("--data", help="Data set to train on.", show_default="synthetic batches")]
Out = Annotated[Path, typer.Option("--out", help="Folder in which the run folder is created.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="Time budget in seconds, once torch is loaded: trials (the first time), peaks and steps.",
        show_default=f"{RECIPE}, else 60",
    ),
]
Runs = Annotated[
    int,
    typer.Option(
        "--runs", min=1, help="Number of runs, each with a new seed; the interval then covers their variation."
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Random seed of weights and data.", show_default=RECIPE)]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", help="Device: auto, cpu, cuda, cuda:1, mps ...", show_default=f"{RECIPE}, else auto"),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Fail instead of adapting precision, batch size or features to this machine.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved configuration and the commands; run nothing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the output as one JSON document.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Show info messages; -vv shows debug messages, too.")
]
Quiet = Annotated[
    int, typer.Option("--quiet", "-q", count=True, help="Hide progress and log messages; the result is still printed.")
]


def check_single_process(verb: str) -> None:
    """Raise if a launcher has started several ranks: each would repeat the whole work."""
    if read_rank().world > 1:
        raise ConfigError(
            f"{verb} needs a single process: found {read_rank().world} ranks, and each would start its own run",
            hint="start it without a launcher; bench, profile, train and eval can run on many ranks",
        )


def prepare_process(config: "Config | None" = None, *, verbose: int = 0, quiet: int = 0) -> None:
    """Configure logging to stderr. Restart the process if `config` keeps freed memory, which glibc reads at start."""
    if config and config.engine.keep_memory:
        restart_keeping_memory()
    configure_terminal(verbose=verbose, quiet=quiet)


def collect_flags(values: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Return the recipe keys that the given flags set; a value of None removes the key."""
    # --data overrides a recipe with another data.source.
    given: dict[str, Any] = {"data.root": str(data.absolute()), "data.source": "files"} if data is not None else {}
    given |= {key: value for key, value in values.items() if value is not None}
    if "measure.seconds" in given:  # --seconds replaces the number of steps of a recipe that counts steps
        given.setdefault("measure.iterations", None)
    return given
