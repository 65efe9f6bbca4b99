"""Published figures of the same model beside this run."""

from typing import Any

import altair as alt

from trainstone.report.blocks import Figure, Section, Table
from trainstone.report.charts import BLUE, GREY, ORANGE, figure, height_of, values
from trainstone.report.view import RunView
from trainstone.results.anchors import Anchor, anchors_for, matching_device
from trainstone.units import format_percent, format_rate

CAVEAT = "Other software, precision and batch: a measure of what the device was once made to do, not a test."


def build(view: RunView) -> Section | None:
    """Only where the run is of a model that has published figures."""
    result = view.result
    anchors = anchors_for(result)
    if result.throughput is None or not anchors:
        return None
    rate = result.throughput.images_per_second / max(1, result.world.ranks)
    same = matching_device(result)
    lead = CAVEAT
    if same:
        best = max(same, key=lambda anchor: anchor.per_device)
        lead = f"{format_percent(rate / best.per_device, 0)} of the published {best.device} figure. {CAVEAT}"
    ranked = sorted(anchors, key=lambda anchor: anchor.per_device, reverse=True)
    return Section("published", "Against published figures", [draw(rate, ranked, same)], lead)


def draw(rate: float, anchors: list[Anchor], same: list[Anchor]) -> Figure:
    """The best figure of each device on a logarithmic axis, this run among them."""
    best: dict[str, Anchor] = {}
    for anchor in anchors:  # fastest first; the table below has them all
        best.setdefault(anchor.device, anchor)
    rows: list[dict[str, Any]] = [
        {"what": anchor.device, "rate": anchor.per_device, "colour": ORANGE if anchor in same else GREY}
        for anchor in best.values()
    ]
    rows.append({"what": "this run", "rate": rate, "colour": BLUE})
    rows.sort(key=lambda row: -row["rate"])
    chart = (
        alt.Chart(values(rows))
        .mark_point(filled=True, size=80, opacity=1)
        .encode(
            x=alt.X("rate:Q", title="images/s a device", scale=alt.Scale(type="log", nice=True)),
            y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=180)),
            color=alt.Color("colour:N", scale=None),
            tooltip=["what:N", alt.Tooltip("rate:Q", format=".4~g")],
        )
        .properties(width="container", height=height_of(len(rows), 18))
    )
    told = "; ".join(f"{row['what']} {format_rate(row['rate'])}" for row in rows)
    title = "Best published training speed of each device, and this run"
    return figure("published", title, f"Images per second and device: {told}.", chart, tabulate(rate, anchors))


def tabulate(rate: float, anchors: list[Anchor]) -> Table:
    """With the source of each."""
    rows = [
        [anchor.title, format_rate(anchor.per_device), format_percent(rate / anchor.per_device, 1), anchor.source]
        for anchor in anchors
    ]
    return Table(["published", "images/s a device", "this run", "source"], rows, numeric=[False, True, True, False])
