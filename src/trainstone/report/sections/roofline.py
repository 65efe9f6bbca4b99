"""Operators against the roofs that were measured in the same run."""

from trainstone.report.blocks import Block, Facts, Prose, Section, Table
from trainstone.report.roofline_charts import draw_bounds, draw_roofline, keep_sound
from trainstone.report.view import RunView
from trainstone.results.breakdown import mean_step, shorten
from trainstone.results.profiled import RooflineChart, RooflinePoint
from trainstone.results.roofline import name_plainly
from trainstone.units import format_decimal, format_percent, format_seconds

NAME_LENGTH = 56


def build(view: RunView) -> Section | None:
    """Sentences, both charts, and the numbers."""
    timeline = view.result.timeline
    roofs = keep_sound(timeline.roofline) if timeline and timeline.roofline else None
    if timeline is None or roofs is None:
        return None
    step_seconds = mean_step(timeline)
    blocks: list[Block] = [Prose(" ".join(roofs.told))] if roofs.told else []
    drawn = draw_roofline(roofs)
    blocks += [drawn] if drawn else []
    blocks += [draw_bounds(roofs, step_seconds), Facts(list_facts(roofs)), tabulate(roofs, step_seconds)]
    lead = (
        "The least time an operator can take is that of its arithmetic at the measured peak or of its memory traffic "
        "at the measured bandwidth, whichever is longer."
    )
    return Section("roofline", "Roofline", blocks, lead)


def list_facts(roofs: RooflineChart) -> list[tuple[str, str]]:
    """The roofs, and how much of the step stands under them."""
    return [
        ("peak", f"{format_decimal(roofs.peak_flops, 'FLOP/s')}, {roofs.peak_source}"),
        ("memory bandwidth", format_decimal(roofs.peak_bytes_per_second, "B/s")),
        ("ridge", f"{roofs.peak_flops / roofs.peak_bytes_per_second:.3g} FLOP a byte: below it memory is the bound"),
        ("work", "FLOPs by torch's formulas; of memory each tensor once"),
        ("operators judged", f"{len(roofs.operators):,}, {format_percent(roofs.covered_share)} of the profiled step"),
    ]


def tabulate(roofs: RooflineChart, step_seconds: float) -> Table:
    """One row an operator, all its shapes together."""
    heads = ["operator", "calls", "time", "of the step", "FLOP/s", "B/s", "FLOP a byte", "bound", "of bound", "trace"]
    rows, keys = [], []
    for point in roofs.operators:
        share = point.seconds / step_seconds if step_seconds > 0 else 0.0
        rate, traffic = point.flops / point.seconds, point.bytes_moved / point.seconds
        rows.append(
            [
                shorten(name_plainly(point.operator), NAME_LENGTH),
                f"{point.calls:,}",
                format_seconds(point.seconds),
                format_percent(share),
                format_decimal(rate, "") if point.flops else "",
                format_decimal(traffic, ""),
                f"{point.flops / point.bytes_moved:.3g}" if point.flops and point.bytes_moved else "",
                point.bound,
                format_percent(point.share_of_bound, 0),
                shorten(point.operator, NAME_LENGTH),
            ]
        )
        keys.append(sort_keys(point, share))
    numeric = [False, True, True, True, True, True, True, False, True, False]
    return Table(heads, rows, caption="Calls and times a step", sortable=True, keys=keys, numeric=numeric)


def sort_keys(point: RooflinePoint, share: float) -> list[float | str]:
    """What the cells are sorted by; what was not counted stands last."""
    return [
        name_plainly(point.operator),
        point.calls,
        point.seconds,
        share,
        point.flops / point.seconds if point.flops else "",
        point.bytes_moved / point.seconds,
        point.flops / point.bytes_moved if point.flops and point.bytes_moved else "",
        point.bound,
        point.share_of_bound,
        point.operator,
    ]
