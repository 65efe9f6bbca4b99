"""trainstone weights: files of weights turned into one another. Nothing in them is ever run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.cli.render.output import interruptible, print_json
from trainstone.errors import ConfigError
from trainstone.machine.ranks import read_rank
from trainstone.results.progress import Progress
from trainstone.text import printable
from trainstone.units import format_bytes, format_count

if TYPE_CHECKING:
    from trainstone.cli.render.progress import ProgressLine

app = typer.Typer(name="weights", help="Convert files of trained weights.", no_args_is_help=True)


@app.callback()
def verbs() -> None:
    """Convert files of trained weights."""


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Weights of a ResNet, of whichever kind: a file, or an address (http, https) to fetch it from first.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="DST",
            help="File to make: .pth (torchvision), .safetensors, or .pickle (the backbone of MLPerf's SSD in MXNet).",
        ),
    ],
    sha256: Annotated[
        str | None,
        typer.Option(
            "--sha256",
            metavar="DIGITS",
            help="What a fetched file must be.",
            show_default="by its name, NAME-1a2b3c4d.pth",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Turn weights of torchvision, of MLPerf SSD (MXNet) and safetensors into one another."""
    from trainstone.cli.render.progress import ProgressLine

    options.prepare_process(quiet=quiet)
    if read_rank().number > 0:
        return  # one file is enough
    with ProgressLine(quiet=bool(quiet)) as line, interruptible():
        line.show(Progress("loading torch"))
        from trainstone.models.weights import choose_kind, convert_weights

        choose_kind(target)  # before a long download
        file = bring(source, target, sha256, line)
        line.show(Progress("converting"))
        made = convert_weights(file, target)
    if as_json:
        print_json({"file": str(target), "source": str(file), **made._asdict()})
        return
    size = f"{format_count(made.tensors, 'tensor')}, {made.parameters:,} parameters, {format_bytes(made.bytes)}"
    print(printable(f"wrote {made.network} of {file} to {target}: {size}"))
    if made.left_out:
        more = ", ..." if len(made.left_out) > 3 else ""
        print(printable(f"left out {format_count(len(made.left_out), 'tensor')}: {', '.join(made.left_out[:3])}{more}"))


def bring(source: str, target: Path, sha256: str | None, line: "ProgressLine") -> Path:
    """Return the file to read; one with an address is fetched to the target's folder, where it stays."""
    from trainstone.data.sources.download import fetch, find_file, is_address

    if not is_address(source):
        if sha256 is not None:
            raise ConfigError("--sha256 is for a file that is fetched; SRC is none with http:// or https://")
        return Path(source)
    wanted = find_file(source, sha256)
    file = target.parent / wanted.name
    if file == target:
        raise ConfigError(f"{target} is where the fetched file goes", hint="choose another name or folder for DST")
    for step in fetch([wanted], target.parent):
        line.show_work(*step)
    return file
