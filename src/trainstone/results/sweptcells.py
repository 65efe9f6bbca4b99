"""The cells of a sweep's table, the same on the terminal and on the page."""

from trainstone.results.profiled import PIPES
from trainstone.results.sweep import Sweep, SweepRow, format_setting
from trainstone.units import format_bytes, format_percent, format_rate

STATES = {"out_of_memory": "out of memory", "failed": "failed", "not_tried": "not tried"}


def describe_cells(sweep: Sweep, row: SweepRow) -> dict[str, str]:
    """Return the cells by column; empty is what was not measured."""
    rate, interval = row.images_per_second, row.ci95
    half = (interval[1] - interval[0]) / 2 / rate if interval and rate else None
    cells = {
        "images/s": "" if rate is None else format_rate(rate),
        "±": "" if half is None else format_percent(half),
        "MFU": "" if row.mfu is None else format_percent(row.mfu),
        "memory": "" if row.memory_bytes is None else format_bytes(row.memory_bytes),
    }
    if sweep.profile:
        busy = row.compute_utilisation
        cells["utilisation"] = "" if busy is None else format_percent(busy)
        shares = {name: row.cores_percent.get(name) for name in PIPES}
        cells |= {name: "" if percent is None else f"{percent:.1f} %" for name, percent in shares.items()}
    return cells | {"note": "; ".join(list_notes(sweep, row))}


def list_notes(sweep: Sweep, row: SweepRow) -> list[str]:
    """Return what is special about a point."""
    notes = ["knee"] if is_knee(sweep, row) else []
    if row.status != "ok":
        state = STATES[row.status]
        # A message of the child's may begin with the same words
        why = row.note.removeprefix(state).lstrip(": ")
        return [f"{state}: {why}" if why else state]
    if row.images_per_second is not None and row.ci95 is None:
        notes.append("no interval")
    if not row.steady:
        notes.append("not steady")
    if row.profile == "failed":
        notes.append("no profile")
    elif row.note:
        notes.append(row.note)
    return notes


def is_knee(sweep: Sweep, row: SweepRow) -> bool:
    """Say whether a row is the knee of its curve."""
    return row.status == "ok" and any(
        format_setting(knee.curve) == format_setting(row.curve) and knee.value == row.value for knee in sweep.knees
    )
