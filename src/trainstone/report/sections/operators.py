"""What ran within the profiled steps: operators, kernels, and the threads and streams they ran on."""

from collections.abc import Sequence

from trainstone.report.blocks import Block, Code, Section, Table
from trainstone.report.profile_charts import draw_kernels, draw_operators
from trainstone.report.view import RunView
from trainstone.results.breakdown import format_calls, shorten
from trainstone.units import format_count, format_percent, format_seconds

NAME_LENGTH = 72
"""In a table, in characters; the whole names are in a list below it."""


def build(view: RunView) -> Section | None:
    """Operators: bars, and a table that sorts."""
    timeline = view.result.timeline
    if timeline is None or not timeline.operators:
        return None
    found, steps = timeline.operators, max(1, len(timeline.steps))
    on_device = any(operator.device_seconds is not None for operator in found)
    rows: list[list[str]] = []
    keys: list[list[float | str]] = []
    for operator in found:
        spent: list[float | str] = [operator.self_seconds, operator.total_seconds]
        cells = [format_seconds(operator.self_seconds / steps), format_seconds(operator.total_seconds / steps)]
        if on_device:
            device = operator.device_seconds
            cells.append("" if device is None else format_seconds(device / steps))
            spent.append("" if device is None else device)
        name, calls = shorten(operator.name, NAME_LENGTH), format_calls(operator.calls, steps)
        rows.append([name, calls, *cells, format_percent(operator.share)])
        keys.append([operator.name, operator.calls, *spent, operator.share])
    heads = ["operator", "calls", "own time", "with callees", *(["on the device"] if on_device else []), "share"]
    blocks: list[Block] = [
        draw_operators(found, on_device=on_device),
        Table(
            heads, rows, caption="Calls and times a step", sortable=True, keys=keys,
            numeric=[False, *[True] * (len(heads) - 1)],
        ),
        *list_whole([operator.name for operator in found], "operators"),
    ]  # fmt: skip
    share = "time on the device" if on_device else "own time on the host, without the operators it calls"
    lead = f"The {format_count(len(found), 'operator')} with most time; shares are of the profiled steps, by {share}."
    return Section("operators", "Operators", blocks, lead)


def build_kernels(view: RunView) -> Section | None:
    """Kernels of a device, where there is one."""
    timeline = view.result.timeline
    if timeline is None or not timeline.kernels:
        return None
    found, steps = timeline.kernels, max(1, len(timeline.steps))
    rows = [
        [
            shorten(kernel.name, NAME_LENGTH),
            kernel.kind,
            format_calls(kernel.calls, steps),
            format_seconds(kernel.seconds / steps),
            format_percent(kernel.share),
        ]
        for kernel in found
    ]
    keys: list[list[float | str]] = [
        [kernel.name, kernel.kind, kernel.calls, kernel.seconds, kernel.share] for kernel in found
    ]
    table = Table(
        ["kernel", "kind", "calls", "time", "share"], rows, caption="Calls and times a step", sortable=True, keys=keys,
        numeric=[False, False, True, True, True],
    )  # fmt: skip
    whole = list_whole([kernel.name for kernel in found], "kernels")
    lead = f"The {format_count(len(found), 'kernel')} with most time on the device; shares are of the profiled steps."
    return Section("kernels", "Kernels", [draw_kernels(found), table, *whole], lead)


def build_lanes(view: RunView) -> Section | None:
    """Threads of the host and streams of the device."""
    timeline = view.result.timeline
    if timeline is None or not timeline.lanes:
        return None
    steps, whole = max(1, len(timeline.steps)), sum(step.seconds for step in timeline.steps)
    rows = [
        [
            shorten(lane.name, NAME_LENGTH),
            lane.kind,
            f"{lane.events:,}",
            format_seconds(lane.busy_seconds / steps),
            format_percent(lane.busy_seconds / whole) if whole else "",
        ]
        for lane in timeline.lanes
    ]
    keys: list[list[float | str]] = [
        [lane.name, lane.kind, lane.events, lane.busy_seconds, lane.busy_seconds / whole if whole else ""]
        for lane in timeline.lanes
    ]
    table = Table(
        ["lane", "kind", "events", "busy a step", "share"], rows, sortable=True, keys=keys,
        numeric=[False, False, True, True, True],
    )  # fmt: skip
    return Section("lanes", "Threads and streams", [table], "How long each was busy within the profiled steps.")


def list_whole(names: Sequence[str], what: str) -> list[Block]:
    """Return the whole names of what had to be shortened, folded away."""
    long = [name for name in names if len(name) > NAME_LENGTH]
    return [Code(f"Whole names of the {what}", "\n".join(long), folded=True)] if long else []
