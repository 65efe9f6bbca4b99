"""Findings with their cures."""

from trainstone.report.blocks import Findings, Prose, Section
from trainstone.report.view import RunView
from trainstone.results.schema import FINISHED


def build(view: RunView) -> Section | None:
    """Gravest first; a finished run without any says so."""
    order = {"error": 0, "warning": 1, "info": 2}
    rows = sorted(view.result.findings, key=lambda found: order[found.severity])
    if rows:
        return Section("findings", "Findings", [Findings(rows)])
    if view.result.status in FINISHED:
        return Section("findings", "Findings", [Prose("None: nothing speaks against these numbers.")])
    return None
