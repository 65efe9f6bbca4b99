"""Where the time went: within a step, and outside of the steps."""

import altair as alt

from trainstone.report.blocks import Figure, Section, Table
from trainstone.report.charts import PALETTE, figure, values
from trainstone.report.view import RunView
from trainstone.results.schema import Phases
from trainstone.units import format_percent, format_seconds

OUTSIDE = ("eval", "checkpoint")


def build(view: RunView) -> Section | None:
    """A bar of parts that sum up, and the same as a table."""
    phases = view.result.phases
    parts = split(phases) if phases else {}
    if not parts:
        return None
    total = sum(parts.values())
    rows = [[name, format_seconds(seconds), format_percent(seconds / total)] for name, seconds in parts.items()]
    largest = max(parts, key=lambda name: parts[name])
    lead = f"Most of the {format_seconds(total)} went into: {largest} ({format_percent(parts[largest] / total, 0)})."
    table = Table(["part", "time", "share"], rows, numeric=[False, True, True])
    return Section("phases", "Where the time went", [draw_bar(parts, total), table], lead)


def split(phases: Phases) -> dict[str, float]:
    """Return parts in seconds that sum up to the program's time where that was measured, else to that of the steps."""
    if phases.train_seconds is None:
        return {}
    inner = {
        "waiting for data": phases.data_wait_seconds,
        "forward": phases.forward_seconds,
        "backward": phases.backward_seconds,
        "optimiser": phases.optimizer_seconds,
        "compiling": phases.compile_seconds,
    }
    parts = {name: seconds for name, seconds in inner.items() if seconds}
    rest = phases.train_seconds - sum(parts.values())
    # The rest of split steps is what lies between the marks; of whole ones it is the work itself.
    parts["rest of the steps" if phases.forward_seconds else "training steps"] = max(0.0, rest)
    for name in OUTSIDE:
        seconds = getattr(phases, f"{name}_seconds")
        if seconds:
            parts["evaluation" if name == "eval" else "checkpoints"] = seconds
    if phases.program_seconds is not None:
        parts["set-up, peak measurement, judging"] = max(0.0, phases.program_seconds - sum(parts.values()))
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def draw_bar(parts: dict[str, float], total: float) -> Figure:
    """One stacked bar."""
    rows = [{"part": name, "seconds": seconds, "order": place} for place, (name, seconds) in enumerate(parts.items())]
    colours = [PALETTE[place % len(PALETTE)] for place in range(len(rows))]
    chart = (
        alt.Chart(values(rows))
        .mark_bar(height=34)
        .encode(
            x=alt.X("seconds:Q", title="seconds", stack="zero", scale=alt.Scale(domain=[0, total], nice=False)),
            color=alt.Color(
                "part:N", title=None, sort=list(parts), scale=alt.Scale(domain=list(parts), range=colours),
                legend=alt.Legend(columns=2, labelLimit=260),
            ),
            order="order:Q",
            tooltip=["part:N", alt.Tooltip("seconds:Q", format=".4~g")],
        )
        .properties(width="container", height=44)
    )  # fmt: skip
    told = ", ".join(f"{name} {format_percent(seconds / total, 0)}" for name, seconds in parts.items())
    return figure("phases", "Where the time went", f"Of {format_seconds(total)}: {told}.", chart)
