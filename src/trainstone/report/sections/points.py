"""Child runs: each with its number and its own page."""

from urllib.parse import quote

from trainstone.report.blocks import Section, Table
from trainstone.report.view import Child, RunView
from trainstone.results.summary import describe_interval
from trainstone.units import format_rate


def build(view: RunView) -> Section | None:
    """A row a child."""
    if not view.children:
        return None
    rows = [[child.label, *_tell(child)] for child in view.children]
    links = [address(view, child.run) for child in view.children]
    columns = ["run", "images/s", "interval", "noise", "status"]
    table = Table(columns, rows, links=links, numeric=[False, True, False, False, False])
    return Section("points", "Runs", [table], f"{len(rows)} runs in points/.")


def address(view: RunView, run: str) -> str | None:
    """Return the child's page, or its result where it has none."""
    for name in ("report.html", "result.json"):
        if (view.path / run / name).is_file():
            return f"{quote(run)}/{name}"
    return None


def _tell(child: Child) -> list[str]:
    result = child.result
    if result is None:
        return ["", "", "", "cannot be read"]
    noise = result.noise.grade if result.noise else ""
    if result.throughput is None:
        return ["", "", noise, result.status]
    rate = format_rate(result.throughput.images_per_second)
    return [rate, describe_interval(result.throughput), noise, result.status]
