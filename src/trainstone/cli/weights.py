"""trainstone weights: convert weight files. Code in a pickle is never executed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.cli.render.output import exit_on_interrupt, print_json
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
            help="ResNet weights in any supported format: a file, or an http(s) URL to download.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="DST",
            help="File to write: .pth (torchvision), .safetensors, or .pickle (backbone of MLPerf SSD in MXNet).",
        ),
    ],
    sha256: Annotated[
        str | None,
        typer.Option(
            "--sha256",
            metavar="DIGITS",
            help="Expected SHA-256 checksum of a downloaded file.",
            show_default="from its name, as in NAME-1a2b3c4d.pth",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = 0,
) -> None:
    """Convert ResNet weights between torchvision, safetensors and MLPerf SSD (MXNet) files."""
    from trainstone.cli.render.progress import ProgressLine

    options.prepare_process(quiet=quiet)
    if read_rank().number > 0:
        return  # only rank 0 writes the file
    with ProgressLine(quiet=bool(quiet)) as line, exit_on_interrupt():
        line.show(Progress("loading torch"))
        from trainstone.models.weights import choose_kind, convert_weights

        choose_kind(target)  # fail before a long download
        file = fetch_source(source, target, sha256, line)
        line.show(Progress("converting"))
        converted = convert_weights(file, target)
    if as_json:
        print_json({"file": str(target), "source": str(file), **converted._asdict()})
        return
    parameters = f"{format_count(converted.tensors, 'tensor')}, {converted.parameters:,} parameters"
    size = format_bytes(converted.bytes)
    print(printable(f"wrote {converted.network} of {file} to {target}: {parameters}, {size}"))
    if converted.skipped:
        more = ", ..." if len(converted.skipped) > 3 else ""
        print(
            printable(
                f"skipped {format_count(len(converted.skipped), 'tensor')}: {', '.join(converted.skipped[:3])}{more}"
            )
        )


def fetch_source(source: str, target: Path, sha256: str | None, line: "ProgressLine") -> Path:
    """Return the file to read; a URL is first downloaded to the folder of the target and stays there."""
    from trainstone.data.sources.download import build_download_spec, download_files, is_url

    if not is_url(source):
        if sha256 is not None:
            raise ConfigError(f"--sha256 needs a URL: SRC is {source}; allowed are http:// and https:// URLs")
        return Path(source)
    wanted = build_download_spec(source, sha256)
    file = target.parent / wanted.name
    if file == target:
        raise ConfigError(
            f"DST is also the path of the downloaded file: {target}", hint="choose another name or folder for DST"
        )
    for step in download_files([wanted], target.parent):
        line.show_work(*step)
    return file
