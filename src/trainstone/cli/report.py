"""trainstone report: a page for a run, an index for a folder of runs, charts for papers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstone.cli import options
from trainstone.errors import ConfigError, ResultError

if TYPE_CHECKING:
    from trainstone.report.vega import Scripts


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder for its page; folders of runs, or several, for an index.")
    ],
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Write the page to this file.", show_default="RUN/report.html or DIR/index.html"),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Also write the charts as PNG into this folder.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also write the charts as SVG into this folder.")] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", help="Also write the charts as PDF into this folder.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a self-contained HTML page of a run, or an index of many."""
    from trainstone.cli.output import print_json
    from trainstone.report.vega import Scripts
    from trainstone.text import printable

    formats = {"png": png, "svg": svg, "pdf": pdf}
    folders = {kind: folder for kind, folder in formats.items() if folder is not None}
    with Scripts() as scripts:  # before anything heavy is loaded: they are made meanwhile
        from trainstone.results.store import find_runs

        run = runs[0].parent if runs[0].name == "result.json" else runs[0]
        if len(runs) == 1 and ((run / "result.json").exists() or not find_runs(run)):
            written, figures = write_one(run, page, folders, scripts)
        elif folders:
            raise ConfigError("--png, --svg and --pdf draw the charts of one run", hint="give a single run folder")
        else:
            written, figures = write_many(runs, page, scripts), []
    if as_json:
        print_json({"page": str(written), "figures": [str(path) for path in figures]})
        return
    print(f"report  {printable(str(written))}")
    for path in figures:
        print(f"figure  {printable(str(path))}")


def write_one(
    run: Path, page_file: Path | None, folders: dict[str, Path], scripts: "Scripts"
) -> tuple[Path, list[Path]]:
    """Write the page of a run, and its charts in each format asked for."""
    from trainstone.report.page import write_report

    target, page = write_report(run, scripts, page_file)
    if not folders:
        return target, []
    from trainstone.report.figures import export_figures

    return target, [path for kind, folder in folders.items() for path in export_figures(page.figures, folder, kind)]


def write_many(given: list[Path], page: Path | None, scripts: "Scripts") -> Path:
    """Write the index of folders and runs."""
    from trainstone.report.index import write_index
    from trainstone.results.store import find_runs

    paths: list[Path] = []
    for path in given:
        if not path.exists():
            raise ResultError(f"no such run or folder: {path}")
        found = [path] if (path / "result.json").exists() else find_runs(path)
        if not found:
            raise ResultError(f"no runs in {path}: no folder in it has a result.json")
        paths += [run for run in found if run not in paths]
    target = page or (given[0] / "index.html" if len(given) == 1 else Path("index.html"))
    unreadable = write_index(paths, target, scripts)
    if unreadable:
        print(f"warning: {unreadable} of {len(paths)} runs cannot be read; the page names them", file=sys.stderr)
    return target
