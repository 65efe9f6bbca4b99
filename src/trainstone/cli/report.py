"""trainstone report: write the HTML page of a run, an index page of many runs, or chart files."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainstone.cli import options
from trainstone.cli.render.output import print_json
from trainstone.errors import ConfigError, ResultError
from trainstone.text import printable


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="One run folder: writes its page. Several, or folders of runs: writes an index."),
    ],
    page: Annotated[
        Path | None,
        typer.Option("--page", help="HTML file to write.", show_default="RUN/report.html or DIR/index.html"),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also write the charts as PNG files to this folder.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Also write the charts as SVG files to this folder.")
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option("--pdf", help="Also write the charts as PDF files to this folder.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a run as a self-contained HTML page, or many runs as an index page."""
    from trainstone.results.run_folder import find_runs

    folders = {kind: folder for kind, folder in (("png", png), ("svg", svg), ("pdf", pdf)) if folder is not None}
    run = runs[0].parent if runs[0].name == "result.json" else runs[0]
    figures: list[Path] = []
    if len(runs) == 1 and (holds_result(run) or not find_runs(run)):
        from trainstone.report.page import export_figures, write_report

        written, shown = write_report(run, page)
        figures = [path for kind, folder in folders.items() for path in export_figures(shown.figures, folder, kind)]
    elif folders:
        raise ConfigError("--png, --svg and --pdf need a single run", hint="give one run folder")
    else:
        from trainstone.report.index import write_index

        paths: list[Path] = []
        for path in runs:
            if not path.exists():
                raise ResultError(f"no such run or folder: {path}")
            found = [path] if holds_result(path) else find_runs(path)
            if not found:
                raise ResultError(f"no runs in {path}: expected folders with a result.json")
            paths += [run for run in found if run not in paths]
        written = page or (runs[0] / "index.html" if len(runs) == 1 else Path("index.html"))
        if unreadable := write_index(paths, written):
            print(f"warning: {unreadable} of {len(paths)} runs cannot be read; the page names them", file=sys.stderr)
    if as_json:
        print_json({"page": str(written), "figures": [str(path) for path in figures]})
        return
    print(f"report  {printable(str(written))}")
    for path in figures:
        print(f"figure  {printable(str(path))}")


def holds_result(folder: Path) -> bool:
    """Return whether a folder is a run folder; False if it may not be read."""
    return os.path.exists(folder / "result.json")  # noqa: PTH110 (Path.exists raises PermissionError)
