"""The page of `trainstone compare`."""

from pathlib import Path

from trainstone.report.page import Page, write_page
from trainstone.report.sections import comparison as section
from trainstone.report.vega import Scripts
from trainstone.results.schema import Comparison


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write ratios, intervals and verdicts as one page."""
    page = Page(
        title="trainstone: comparison",
        about="comparison",
        verdict=comparison.verdict,
        sections=[section.describe(comparison, lead="How many times as fast A is as B, with the 95 % interval.")],
    )
    with Scripts() as scripts:
        write_page(page, path, scripts)
