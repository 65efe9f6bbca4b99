"""The charts of train --runs: every run's way to the target in one picture, and how long each took."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from trainstone.report.blocks import Figure
from trainstone.report.charts import BLUE, GREY, ORANGE, PALETTE, figure, height_of, round_sensibly, values
from trainstone.report.learning_charts import HEIGHT, choose_time_axis, metric_rows, name_axis
from trainstone.report.loss_charts import MOST_EVALUATIONS, Axis, Rows
from trainstone.results.learning import SHARES, format_metric, format_target, name_metric, thin_history
from trainstone.results.quality import Quality, Repeated, TrainedRun
from trainstone.results.repeated import tell_score
from trainstone.units import format_seconds

LINES = [colour for colour in PALETTE if colour != ORANGE]
"""Orange is the target's."""


class Course(NamedTuple):
    """A run's name and its evaluations."""

    name: str
    quality: Quality


def draw_courses(courses: Sequence[Course], together: Quality) -> Figure | None:
    """The metric over epochs, a line a run, and the target; of many runs all lines have one colour."""
    percent = 100 if together.metric in SHARES else 1
    end = max((found.epoch for course in courses for found in course.quality.history), default=0.0)
    across = Axis("epochs", 1.0, end or 1.0)
    rows = [row for course in courses for row in course_rows(course, together.metric, across, len(courses))]
    if not rows:
        return None
    y = alt.Y(
        "y:Q", title=name_axis(together.metric), scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=5)
    )
    layers = mark_courses(rows, courses, across, y)
    if together.target is not None:
        at = {"y": round_sensibly(percent * together.target)}
        rule = alt.Chart(values([at])).mark_rule(strokeWidth=1.5, strokeDash=[5, 3], color=ORANGE)
        layers.insert(0, rule.encode(y=y))
    chart = alt.layer(*layers).properties(width="container", height=HEIGHT)
    name = name_metric(together.metric)
    title = f"{name.replace('top', 'Top', 1)} over epochs, all runs"
    if together.target is not None:
        title += f"; dashed: the target of {format_target(together.metric, together.target)}"
    return figure("accuracy-runs", title, tell_courses(courses, together), chart)


def course_rows(course: Course, metric: str, across: Axis, num_runs: int) -> Rows:
    """Return a run's points, fewer of each where there are many runs."""
    shown = thin_history(course.quality, max(12, MOST_EVALUATIONS // num_runs))
    return [row | {"run": course.name} for row in metric_rows(shown, metric, across, lambda found: found.epoch)]


def mark_courses(rows: Rows, courses: Sequence[Course], across: Axis, y: alt.Y) -> list[Any]:
    """Lines, and points that say more when they are pointed at."""
    names = [course.name for course in courses]
    few = len(names) <= len(LINES)
    colours = LINES[: len(names)] if few else [BLUE] * len(names)
    legend = alt.Legend(columns=6, labelLimit=160, symbolType="circle") if few else None
    colour = alt.Color("run:N", title=None, scale=alt.Scale(domain=names, range=colours), legend=legend)
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("told:N", title="is"),
        alt.Tooltip("after:N"),
        alt.Tooltip("clock:N", title="run's clock"),
    ]
    chart, x = alt.Chart(values(rows)), across.encode()
    size = 30 if len(rows) <= 120 else 4
    return [
        chart.mark_line(strokeWidth=1.5, opacity=1 if few else 0.5).encode(x=x, y=y, color=colour, detail="run:N"),
        chart.mark_point(filled=True, size=size, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]


def tell_courses(courses: Sequence[Course], together: Quality) -> str:
    """Say what the chart shows."""
    best = [
        f"{course.name} {format_metric(together.metric, course.quality.value, together.target)}"
        for course in courses[:12]
        if course.quality.history and course.quality.value is not None
    ]
    return f"{name_metric(together.metric)} of each run at its best: {', '.join(best)}."


def draw_times(repeated: Repeated) -> Figure | None:
    """A bar a run, in its colour where it counts in the olympic mean; the mean as a line."""
    reached = [run for run in repeated.runs if run.seconds_to_target is not None]
    if len(reached) < 2:
        return None
    times = {run.seed: run.seconds_to_target or 0.0 for run in reached}
    across = choose_time_axis(max(times.values()))
    rows = [
        {"run": f"seed {run.seed}", "x": across.place(times[run.seed]), "kind": _name_kind(repeated, run)}
        | {"told": format_seconds(times[run.seed])}
        for run in reached
    ]
    order = [str(row["run"]) for row in rows]
    kinds = {"counted": BLUE, "dropped": GREY, "reached": BLUE}
    shown = [kind for kind in kinds if any(row["kind"] == kind for row in rows)]
    legend = alt.Legend(columns=2) if len(shown) > 1 else None
    colours = alt.Scale(domain=shown, range=[kinds[kind] for kind in shown])
    x = alt.X("x:Q", title=across.title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8, labelOverlap=True))
    y = alt.Y("run:N", title=None, sort=order, axis=alt.Axis(labelLimit=180))
    bars = alt.Chart(values(rows)).mark_bar(height=16)
    layers: list[Any] = [
        bars.encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", title=None, scale=colours, legend=legend),
            tooltip=["run:N", alt.Tooltip("told:N", title="reached in"), alt.Tooltip("kind:N", title="is")],
        )
    ]
    if repeated.score_seconds is not None:
        mean = alt.Chart(values([{"x": across.place(repeated.score_seconds)}]))
        layers.append(mean.mark_rule(color=ORANGE, strokeWidth=2).encode(x=x))
    chart = alt.layer(*layers).properties(width="container", height=height_of(len(rows), 28))
    told = ", ".join(f"{row['run']} {row['told']}" for row in rows[:12])
    score = f"; {tell_score(repeated)}" if repeated.score_seconds is not None else ""
    title = "Time to the target" + ("; the line is the olympic mean" if score else "")
    return figure("times-to-target", title, f"Each run's time to the target: {told}{score}.", chart)


def _name_kind(repeated: Repeated, run: TrainedRun) -> str:
    if repeated.score_seconds is None:
        return "reached"
    return "counted" if run.counted else "dropped"
