"""A run's page: sections built from what the run has, rendered into one file that works without a network.

A later kind of run fits in by a file in report/sections/ with `build(view) -> Section | None` and a line below.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2
from markupsafe import Markup

from trainstone import __version__
from trainstone.errors import ResultError
from trainstone.files import write_atomically
from trainstone.report.blocks import Figure, Section
from trainstone.report.sections import comparison as comparison_section
from trainstone.report.sections import (
    convergence,
    data_bench,
    facts,
    profile,
    quality,
    roofline,
    speed,
    sweep,
    timeline,
    training,
)
from trainstone.report.vega import load_scripts
from trainstone.report.view import RunView, read_view
from trainstone.results.schema import Comparison
from trainstone.results.summary import describe_setting
from trainstone.text import printable

# In the order of the page; a section without data is left out.
SECTIONS: tuple[Callable[[RunView], Section | None], ...] = (
    comparison_section.build,
    sweep.build,
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
    roofline.build,
    profile.build_cores,
    training.build,
    quality.build,
    convergence.build,
    training.build_runs,
    speed.build_feeding,
    timeline.build,
    speed.build_distribution,
    speed.build_phases,
    speed.build_limits,
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
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    title: str
    about: str
    verdict: str
    sections: Sequence[Section]
    setting: str = ""
    wide: bool = False
    """For tables of many columns."""

    @property
    def figures(self) -> list[Figure]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def write_report(path: Path, page_file: Path | None = None) -> tuple[Path, Page]:
    """Write a run's page, into its folder unless told otherwise; return where it is, and the page."""
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
            told = printable(f"{name} cannot be drawn: {type(err).__name__}: {err}")
            log.warning("%s", told)
            log.debug("%s", name, exc_info=err)
            view.doubts.append(told)
            continue
        built += [section] if section is not None else []
    return Page(
        title=f"{result.recipe.name} on {result.process.host}: trainstone {result.run_id}",
        about=f"{result.kind} · {result.run_id}",
        verdict=result.verdict or f"No number: the run is {result.status}",
        setting=describe_setting(result),
        sections=built,
    )


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    lead = "How many times as fast A is as B, with the 95 % interval."
    page = Page(
        title="trainstone: comparison",
        about="comparison",
        verdict=comparison.verdict,
        sections=[comparison_section.describe(comparison, lead)],
    )
    write_page(page, path)


def write_page(page: Page, target: Path) -> None:
    html = render(page, load_scripts() if page.figures else "")
    try:
        write_atomically(target, html)
    except OSError as err:
        raise ResultError(f"cannot write {target}: {err.strerror}", hint="choose a file with --page FILE") from err


def render(page: Page, scripts: str) -> str:
    """Return the page's HTML; everything from outside goes through printable and autoescape."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["as_json"] = as_json
    environment.filters["unquote"] = unquote
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
    """Return JSON that cannot end the <script> it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
