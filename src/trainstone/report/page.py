"""Build a run's report: one HTML file that works offline, and charts as PNG, SVG or PDF files.

To add a section, write a function `build(view) -> Section | None` in report/sections/ and list it in SECTIONS.
The chart scripts (Vega, Vega-Lite, vega-embed) come with vl-convert-python, so nothing is downloaded.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2
import vl_convert
from markupsafe import Markup

from trainstone import __version__
from trainstone.errors import ResultError
from trainstone.files import cache_folder, write_atomically
from trainstone.report.blocks import Figure, Section
from trainstone.report.sections import data_bench, facts, profile, quality, speed, sweep_curve, timeline, training
from trainstone.report.view import RunView, read_view
from trainstone.results.schema.run import Comparison
from trainstone.results.step_summary import describe_setting
from trainstone.text import printable

# In page order; a section without data is skipped.
SECTIONS: tuple[Callable[[RunView], Section | None], ...] = (
    sweep_curve.build_comparison,
    sweep_curve.build,
    speed.build_headline,
    data_bench.build_overview,
    facts.build_findings,
    data_bench.build_threads,
    data_bench.build_stages,
    data_bench.build_cores,
    data_bench.build_method,
    profile.build_breakdown,
    profile.build_operators,
    profile.build_kernels,
    profile.build_lanes,
    profile.build_roofline,
    profile.build_cores,
    training.build,
    quality.build,
    training.build_convergence,
    training.build_runs,
    speed.build_loader,
    timeline.build,
    speed.build_distribution,
    speed.build_phases,
    speed.build_limits,
    speed.build_trials,
    speed.build_published,
    facts.build_memory,
    speed.build_devices,
    facts.build_ranks,
    facts.build_points,
    facts.build_machine,
    facts.build_repeat,
    facts.build_unmeasured,
)
PAGE_NAME = "report.html"
SCRIPTS_END = "window.vegaEmbed="  # the end of a complete bundle: it exports what a page calls
FIGURE_WIDTH = 640
DRAW: dict[str, Callable[[dict[str, Any]], str | bytes]] = {
    "svg": vl_convert.vegalite_to_svg,
    "png": partial(vl_convert.vegalite_to_png, scale=2.0),
    "pdf": vl_convert.vegalite_to_pdf,
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    title: str
    about: str
    verdict: str
    sections: Sequence[Section]
    setting: str = ""
    wide: bool = False  # for tables of many columns

    @property
    def figures(self) -> list[Figure]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def write_report(path: Path, page_file: Path | None = None) -> tuple[Path, Page]:
    """Write a run's page to `page_file` (default: into the run folder); return its path and the page."""
    target = page_file or path / PAGE_NAME
    page = build_page(read_view(path, target.parent))
    write_page(page, target)
    return target, page


def build_page(view: RunView) -> Page:
    result, built = view.result, []
    for build in SECTIONS:
        try:
            section = build(view)
        except (ArithmeticError, LookupError, TypeError, ValueError) as err:  # a damaged or foreign result.json
            name = f"{build.__module__.rpartition('.')[2]}.{build.__name__}"
            message = printable(f"section {name} skipped: {type(err).__name__}: {err}")
            log.warning("%s", message)
            log.debug("%s", name, exc_info=err)
            view.warnings.append(message)
            continue
        built += [section] if section is not None else []
    return Page(
        title=f"{result.recipe.name} on {result.process.host}: trainstone {result.run_id}",
        about=f"{result.kind} · {result.run_id}",
        verdict=result.verdict or f"No result: the run is {result.status}",
        setting=describe_setting(result),
        sections=built,
    )


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    section = sweep_curve.describe_comparison(comparison, "Speedup of A over B with 95 % intervals.")
    write_page(Page("trainstone: comparison", "comparison", comparison.verdict, [section]), path)


def write_page(page: Page, target: Path) -> None:
    html = render(page, load_scripts() if page.figures else "")
    try:
        write_atomically(target, html)
    except OSError as err:
        raise ResultError(f"cannot write {target}: {err.strerror}", hint="choose a file with --page FILE") from err


def render(page: Page, scripts: str) -> str:
    """Return the page's HTML; all text goes through printable() and autoescape."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"as_json": as_json, "unquote": unquote}
    return environment.get_template("page.html.j2").render(
        page=page,
        version=__version__,
        style=Markup(read_template("style.css")),
        behaviour=Markup(read_template("page.js")),
        scripts=Markup(scripts),
    )


def read_template(name: str) -> str:
    return (resources.files("trainstone.report") / "templates" / name).read_text(encoding="utf-8")


def as_json(value: Any) -> Markup:
    """Return JSON that is safe inside a <script> element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def load_scripts() -> str:
    """Return the chart scripts, safe inside a <script> element; they are cached, because building takes seconds."""
    path = cache_folder() / f"vega-{metadata.version('vl-convert-python')}.js"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if SCRIPTS_END not in text[-2000:]:
        text = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
        if SCRIPTS_END not in text[-2000:]:
            raise ResultError(
                "vl-convert returned incomplete chart scripts", hint="pip install --upgrade vl-convert-python"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
        except OSError as err:
            log.info("cannot cache chart scripts in %s: %s", path, err)
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def export_figures(figures: Sequence[Figure], folder: Path, kind: str) -> list[Path]:
    """Write each chart to folder/<name>.<kind> in the light theme on white; return the files."""
    light = read_template("style.css").partition(":root {")[2].partition("}")[0]
    colours = dict(re.findall(r"(--[a-z0-9-]+): ([^;]+);", light))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            text = json.dumps(figure.spec)
            for name, value in colours.items():
                text = text.replace(f"var({name})", value)
            spec = json.loads(text.replace('"width": "container"', f'"width": {FIGURE_WIDTH}'))
            spec["config"] |= {"background": "white", "font": "DejaVu Sans, Arial, sans-serif"}
            written.append(folder / f"{figure.name}.{kind}")
            try:
                drawn = DRAW[kind](spec)
                written[-1].write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)
            except ValueError as err:
                raise ResultError(f"cannot write chart {figure.name} as {kind}: {err}") from err
    except OSError as err:
        raise ResultError(f"cannot write figures to {folder}: {err.strerror or err}") from err
    return written
