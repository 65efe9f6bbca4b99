"""Child runs: each with its number and its own page."""

from trainstone.report.blocks import Section, Table
from trainstone.report.view import Child, RunView
from trainstone.results.summary import describe_interval
from trainstone.units import format_rate


def build(view: RunView) -> Section | None:
    """A row a child."""
    if not view.children or view.result.sweep or view.result.repeated:  # sections/sweep.py, trainings.py list them
        return None
    rows = [[child.label, *_tell(child)] for child in view.children]
    links = [address(view, child) for child in view.children]
    columns = ["run", "images/s", "interval", "noise", "status"]
    table = Table(columns, rows, links=links, numeric=[False, True, False, False, False])
    return Section("points", "Runs", [table], f"{len(rows)} runs in points/.")


def address(view: RunView, child: Child) -> str | None:
    """Return the child's page, or its result where it has none; nothing for one that was not read."""
    if child.result is None:
        return None
    files = (f"{child.run}/{name}" for name in ("report.html", "result.json"))
    return next((view.address(file) for file in files if (view.path / file).is_file()), None)


def _tell(child: Child) -> list[str]:
    result = child.result
    if result is None:
        return ["", "", "", "cannot be read"]
    noise = result.noise.grade if result.noise else ""
    if result.throughput is None:
        return ["", "", noise, result.status]
    rate = format_rate(result.throughput.images_per_second)
    return [rate, describe_interval(result.throughput), noise, result.status]
