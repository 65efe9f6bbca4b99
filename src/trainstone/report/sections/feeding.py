"""Real pictures against synthetic batches and the loader alone: is the device fed fast enough?"""

from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Figure, Section, Table
from trainstone.report.charts import BLUE, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.databound import tell_feeding
from trainstone.results.schema import Loader, Result
from trainstone.results.summary import describe_rate
from trainstone.units import format_count, format_percent, format_rate, format_seconds

SPREAD = 10
"""Speeds further apart than this share no linear axis."""


def build(view: RunView) -> Section | None:
    """The three speeds as a picture, and what a picture's time in the loader goes into."""
    result, loader = view.result, view.result.loader
    if loader is None or result.throughput is None or loader.synthetic_images_per_second is None:
        return None
    share = wait_share(result)
    told = tell_feeding(loader, share)
    blocks: list[Block] = [draw_speeds(speeds(result, loader))]
    if loader.stage_seconds_per_image:
        blocks.append(tabulate_stages(loader))
    threads = f"{format_count(loader.threads, 'loader thread')} ({loader.engine})"
    how = f"{threads}; {format_count(loader.pictures, 'picture')}, {loader.storage}"
    left_out = f"; {format_count(loader.skipped_pictures, 'damaged picture')} left out" if loader.skipped else ""
    return Section("feeding", "Is it fed fast enough?", blocks, f"{told[:1].upper()}{told[1:]}. {how}{left_out}.")


def wait_share(result: Result) -> float:
    """Share of the steps' time that the device waited for its batches."""
    phases = result.phases
    if phases is None or not phases.train_seconds or phases.data_wait_seconds is None:
        return 0.0
    return phases.data_wait_seconds / phases.train_seconds


def speeds(result: Result, loader: Loader) -> list[dict[str, Any]]:
    """Rows of the picture, as they are read: what could be, what came, what was made of it."""
    assert result.throughput is not None
    assert loader.synthetic_images_per_second is not None
    rows = [
        ("training, synthetic batches", loader.synthetic_images_per_second, loader.synthetic_ci95),
        ("loader alone", loader.images_per_second, loader.ci95),
        ("training, real pictures", result.throughput.images_per_second, result.throughput.ci95),
    ]
    return [
        {
            "what": name,
            "rate": rate,
            "told": describe_rate(rate, ci95),
            **({"low": ci95[0], "high": ci95[1]} if ci95 else {}),
        }
        for name, rate, ci95 in rows
    ]


def draw_speeds(rows: list[dict[str, Any]]) -> Figure:
    """A dot a speed, with its interval; on a logarithmic axis where they are far apart."""
    rates = [row["rate"] for row in rows]
    far = max(rates) > SPREAD * min(rates)
    scale = alt.Scale(type="log", nice=True) if far else alt.Scale(zero=True)
    title = "images/s, logarithmic" if far else "images/s"
    place = alt.Y("what:N", title=None, sort=[row["what"] for row in rows], axis=alt.Axis(labelLimit=220))
    axis = alt.X("rate:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5, labelOverlap=True))
    spread = (
        alt.Chart().mark_rule(strokeWidth=3, color=BLUE).encode(y=place, x=alt.X("low:Q", scale=scale), x2="high:Q")
    )
    dots = (
        alt.Chart()
        .mark_point(filled=True, size=110, opacity=1, color=BLUE)
        .encode(y=place, x=axis, tooltip=["what:N", alt.Tooltip("told:N", title="images/s")])
    )
    names = alt.Chart().mark_text(align="center", dy=-13).encode(y=place, x=axis, text="told:N")
    layers = [spread, dots, names] if any("low" in row for row in rows) else [dots, names]
    chart = alt.layer(*layers, data=values(rows)).properties(width="container", height=height_of(len(rows), 44))
    told = "; ".join(f"{row['what']} {row['told']}" for row in rows)
    return figure("feeding", "Synthetic batches, the loader alone, real pictures", f"Images per second: {told}.", chart)


def tabulate_stages(loader: Loader) -> Table:
    """What a thread's time a picture goes into."""
    stages = loader.stage_seconds_per_image
    total = sum(stages.values()) or 1.0
    rows = [[name, format_seconds(spent), format_percent(spent / total, 0)] for name, spent in stages.items()]
    rows.append(["all", format_seconds(total), f"{format_rate(1 / total)} images/s a thread"])
    return Table(["stage, loader alone", "a picture", "share"], rows, numeric=[False, True, True])
