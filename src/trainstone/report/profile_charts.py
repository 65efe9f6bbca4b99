"""The charts of a profile: the parts of each step, and bars for operators, kernels and the pipes of the cores.

Names of rows stand above their bars, not beside them: a name of any length then fits a phone.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure, Table
from trainstone.report.charts import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    figure,
    height_of,
    round_sensibly,
    values,
)  # fmt: skip
from trainstone.results.breakdown import PARTS, Part, average_parts, mean_step, shorten
from trainstone.results.profiled import CoreUse, KernelTime, OperatorTime, StepParts, Timeline
from trainstone.units import format_percent, format_seconds

MOST_BARS = 12
MOST_STEPS = 30
ROW_HEIGHT = 42
NAME_LENGTH = 36
"""Of a row, in characters: what 390 pixels hold."""
TOOLTIP_LENGTH = 600
MOST_PERCENT = 1e4

# The page has six colours, a step nine parts: three more that stand out from both papers by 3 : 1 (WCAG 2.2).
OLIVE, PINK, BROWN = "#8a8420", "#cf4f96", "#94714f"
COLOURS = dict(zip(PARTS, (BLUE, TEAL, PURPLE, OLIVE, ORANGE, RED, PINK, BROWN, GREY), strict=True))
"""Of each part, the same in every run."""


def draw_steps(timeline: Timeline) -> Figure:
    """A stacked bar a step; of many steps some are drawn, spread over all."""
    shown, parts = thin_steps(timeline.steps), average_parts(timeline)
    names = [part.name for part in parts]
    rows = [
        {
            "step": f"step {step.step}",
            "part": name,
            "ms": round_sensibly(1e3 * getattr(step, PARTS[name])),
            "order": order,
            "told": format_seconds(getattr(step, PARTS[name])),
            "share": format_percent(getattr(step, PARTS[name]) / step.seconds) if step.seconds else "",
        }
        for step in shown
        for order, name in enumerate(names)
    ]
    colours = alt.Scale(domain=names, range=[COLOURS[name] for name in names])
    longest = max((step.seconds for step in shown), default=0.0) or 1e-9
    chart = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "ms:Q", title="milliseconds", stack="zero",
                scale=alt.Scale(domain=[0, round_sensibly(1e3 * longest)], nice=False),
                axis=alt.Axis(tickCount=8, labelOverlap=True),
            ),
            y=alt.Y("step:N", title=None, sort=None),
            color=alt.Color(
                "part:N", title=None, sort=names, scale=colours,
                legend=alt.Legend(columns=5 if len(names) > 6 else 6, labelLimit=200),
            ),
            order="order:Q",
            tooltip=["step:N", "part:N", alt.Tooltip("told:N", title="takes"), alt.Tooltip("share:N", title="of it")],
        )
        .properties(width="container", height=height_of(len(shown), 26))
    )  # fmt: skip
    told = f"Of a step of {format_seconds(mean_step(timeline))}, on average: {tell_parts(parts)}."
    return figure("breakdown", "Where each profiled step goes", told, chart, tabulate_steps(shown, names))


def thin_steps(steps: Sequence[StepParts]) -> list[StepParts]:
    """Return the steps, or some of many: evenly, with the first and the last."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    return [steps[round(place * (len(steps) - 1) / (MOST_STEPS - 1))] for place in range(MOST_STEPS)]


def tell_parts(parts: Sequence[Part]) -> str:
    """Return compute 93.1 %, optimiser 4.0 %, the largest first."""
    return ", ".join(
        f"{part.name} {format_percent(part.share)}" for part in sorted(parts, key=lambda part: -part.share)
    )


def tabulate_steps(steps: Sequence[StepParts], names: Sequence[str]) -> Table:
    """The same in numbers."""
    rows = [
        [str(step.step), format_seconds(step.seconds), *(format_seconds(getattr(step, PARTS[name])) for name in names)]
        for step in steps
    ]
    return Table(["step", "in all", *names], rows, numeric=[True] * (len(names) + 2))


def draw_operators(operators: Sequence[OperatorTime], *, on_device: bool) -> Figure:
    """The operators that take most: time on the device where there is one, else their own time on the host."""
    what = "time on the device" if on_device else "own time"
    rows = [bar_row(operator.name, operator.share) for operator in operators[:MOST_BARS]]
    told = "; ".join(f"{row['name']} {row['told']}" for row in rows)
    chart = draw_bars(rows, f"% of the profiled steps, {what}")
    return figure("operators", f"Operators by {what}", f"Share of the profiled steps: {told}.", chart)


def draw_kernels(kernels: Sequence[KernelTime]) -> Figure:
    """The kernels that take most, coloured by what they do."""
    colours = {"compute": BLUE, "communication": PURPLE, "copy": OLIVE}
    rows = [bar_row(kernel.name, kernel.share, colours[kernel.kind], kernel.kind) for kernel in kernels[:MOST_BARS]]
    told = "; ".join(f"{row['name']} {row['told']}" for row in rows)
    chart = draw_bars(rows, "% of the profiled steps", kinds=colours)
    return figure("kernels", "Kernels by time", f"Share of the profiled steps: {told}.", chart)


def draw_pipes(cores: CoreUse) -> Figure:
    """How busy each pipe was."""
    rows = [bar_row(name, percent / 100) for name, percent in cores.pipes_percent.items()]
    told = "; ".join(f"{row['name']} {row['told']}" for row in rows)
    chart = draw_bars(rows, "% of the pipe's peak", end=100.0)
    return figure("cores", "Use of the cores' pipes", f"Percent of the peak: {told}.", chart)


def bar_row(name: str, share: float, colour: str = BLUE, kind: str = "") -> dict[str, Any]:
    """Return what draw_bars draws: a name, its share, and both in words."""
    told = format_percent(share)
    short = shorten(name, NAME_LENGTH)
    return {
        "name": short,
        "whole": shorten(name, TOOLTIP_LENGTH),
        "label": f"{short}: {told}",
        "percent": round_sensibly(min(max(0.0, 100 * share), MOST_PERCENT)),
        "told": told,
        "colour": colour,
        "kind": kind,
    }


def draw_bars(
    rows: Sequence[dict[str, Any]], title: str, *, end: float | None = None, kinds: dict[str, str] | None = None,
    rule: float | None = None,
) -> Any:  # fmt: skip
    """Bars across, each below its name; `end` is the least the axis reaches to, `rule` a line down all of them."""
    placed = [{**row, "row": place} for place, row in enumerate(rows)]
    top = max([row["percent"] for row in rows] + [end or 0.0]) or 1.0
    x = alt.X(
        "percent:Q", title=title, scale=alt.Scale(domain=[0, top], nice=end is None or top > end),
        axis=alt.Axis(tickCount=6, labelOverlap=True),
    )  # fmt: skip
    y = alt.Y("row:O", axis=None)
    tooltip = [alt.Tooltip("whole:N", title="name"), alt.Tooltip("told:N", title="share")]
    colour: Any = alt.Color("colour:N", scale=None)
    if kinds:
        used = [kind for kind in kinds if any(row["kind"] == kind for row in rows)]
        scale = alt.Scale(domain=used, range=[kinds[kind] for kind in used])
        colour = alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(columns=3, labelLimit=200))
        tooltip.append(alt.Tooltip("kind:N"))
    chart = alt.Chart(values(placed))
    layers = [
        chart.mark_bar(height=13, yOffset=8).encode(x=x, y=y, color=colour, tooltip=tooltip),
        chart.mark_text(align="left", dy=-9, limit=0).encode(x=alt.value(1), y=y, text="label:N", tooltip=tooltip),
    ]
    if rule is not None:
        line = alt.Chart(values([{"percent": rule}])).mark_rule(strokeDash=[5, 3], strokeWidth=1.5, color=INK)
        layers.insert(0, line.encode(x=x))
    return alt.layer(*layers).properties(width="container", height=height_of(len(rows), ROW_HEIGHT))
