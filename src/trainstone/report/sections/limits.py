"""What the device could do against what it did: the roofline of the model's operations, and utilisation."""

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Section
from trainstone.report.charts import BLUE, ORANGE, TEAL, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.schema import Utilisation
from trainstone.units import format_decimal, format_percent, format_seconds


def build(view: RunView) -> Section | None:
    """The step against its two bounds."""
    used = view.result.utilisation
    if used is None:
        return None
    blocks: list[Block] = []
    steps = view.result.step_seconds
    if steps and used.roofline_compute_seconds is not None and used.roofline_memory_seconds is not None:
        blocks.append(draw_bounds(used.roofline_compute_seconds, used.roofline_memory_seconds, steps.median))
    rows = facts(used)
    if rows:
        blocks.append(Facts(rows))
    lead = f"Limited by {used.limit}." if used.limit not in (None, "unknown") else ""
    return Section("limits", "What limits it", blocks, lead) if blocks else None


def draw_bounds(compute: float, memory: float, median: float) -> Figure:
    """Bars: what the arithmetic alone and the memory traffic alone would take, and what a step took."""
    bars = [
        ("arithmetic alone", compute, BLUE),
        ("memory traffic alone", memory, TEAL),
        ("median step", median, ORANGE),
    ]
    rows = [{"what": name, "ms": seconds * 1e3, "colour": colour} for name, seconds, colour in bars]
    chart = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="milliseconds a step"),
            y=alt.Y("what:N", title=None, sort=[name for name, _, _ in bars]),
            color=alt.Color("colour:N", scale=None),
            tooltip=["what:N", alt.Tooltip("ms:Q", format=".4~g")],
        )
        .properties(width="container", height=height_of(len(rows), 34))
    )
    told = "; ".join(f"{name}: {format_seconds(seconds)}" for name, seconds, _ in bars)
    return figure("limits", "A step against its bounds at the measured peaks", f"{told}.", chart)


def facts(used: Utilisation) -> list[tuple[str, str]]:
    """Numbers behind it, with their source."""
    rows = []
    if used.mfu is not None:
        rows.append(("model FLOPs utilisation", format_percent(used.mfu)))
    if used.flops_per_image:
        rows.append(("work an image", format_decimal(used.flops_per_image, "FLOP")))
    if used.peak_flops:
        rows.append(("peak", f"{format_decimal(used.peak_flops, 'FLOP/s')}, {used.peak_source}"))
    if used.bytes_per_image:
        rows.append(("memory traffic an image", format_decimal(used.bytes_per_image, "B")))
    if used.peak_bytes_per_second:
        rows.append(("bandwidth", f"{format_decimal(used.peak_bytes_per_second, 'B/s')}, measured copy"))
    return rows
