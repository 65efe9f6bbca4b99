"""The charts of a data set's page: classes, boxes of a picture, sizes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import altair as alt

from trainstone.report.blocks import Figure, Table
from trainstone.report.charts import BLUE, figure, height_of, values
from trainstone.results.dataset import ClassSummary, LookedAt, SplitSummary

MAX_SIZES = 400
MAX_POINTS = 1000
MAX_BOX_BARS = 40


def name_classes(classes: Sequence[ClassSummary]) -> list[str]:
    """Return what people call the classes, each once: ImageNet has two cranes, so they get their synsets."""
    texts = [entry.text or entry.name for entry in classes]
    often = Counter(texts)
    named = [f"{text} ({entry.name})" if often[text] > 1 else text for text, entry in zip(texts, classes, strict=True)]
    often = Counter(named)
    return [f"{name} #{label}" if often[name] > 1 else name for label, name in enumerate(named)]


def sort_classes(split: SplitSummary, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names with counts, the most frequent first."""
    return sorted(zip(names, split.class_counts, strict=True), key=lambda pair: -pair[1])


def draw_classes(name: str, split: SplitSummary, names: Sequence[str], what: str) -> Figure:
    """One bar a class, the most frequent on top."""
    pairs = sort_classes(split, names)
    rows: list[dict[str, Any]] = [{"class": title, what: count} for title, count in pairs]
    axis = alt.Axis(labelLimit=190, ticks=False, domain=False)
    bars = alt.Chart(values(rows)).mark_bar(color=BLUE)
    chart = bars.encode(
        x=alt.X(f"{what}:Q", title=what, axis=alt.Axis(tickCount=5)),
        y=alt.Y("class:N", title=None, axis=axis, sort=None),
        tooltip=["class:N", f"{what}:Q"],
    ).properties(width="container", height=height_of(len(rows), 18))
    title = f"{split.name}: {what} of each class"
    told = f"{title}, from {pairs[-1][1]:,} ({pairs[-1][0]}) to {pairs[0][1]:,} ({pairs[0][0]})."
    table = Table(("class", what), [[title, f"{count:,}"] for title, count in pairs], numeric=(False, True))
    return figure(name, title, told, chart, table)


def draw_ranks(name: str, split: SplitSummary, names: Sequence[str], what: str) -> Figure:
    """Counts from the most to the least frequent class."""
    counts = [count for _, count in sort_classes(split, names)]
    ranks = range(0, len(counts), max(1, len(counts) // MAX_POINTS))  # a page of 100,000 classes shall open, too
    rows: list[dict[str, Any]] = [{"rank": rank + 1, what: counts[rank]} for rank in ranks]
    area = alt.Chart(values(rows)).mark_area(color=BLUE, opacity=0.7, interpolate="step")
    chart = area.encode(
        x=alt.X("rank:Q", title="class, from the most to the least frequent", scale=alt.Scale(nice=False, zero=False)),
        y=alt.Y(f"{what}:Q", title=what),
        tooltip=["rank:Q", f"{what}:Q"],
    ).properties(width="container", height=200)
    title = f"{split.name}: {what} of {len(names):,} classes"
    told = f"{title}: the most frequent has {counts[0]:,}, the middle one {counts[len(counts) // 2]:,}"
    told += f", the least {counts[-1]:,}."
    return figure(name, title, told, chart)


def draw_boxes(name: str, split: SplitSummary) -> Figure:
    """One bar for each number of boxes; the last holds all above it."""
    assert split.boxes is not None
    counts: dict[int, int] = {}
    for number, pictures in split.boxes.per_picture.items():
        counts[min(number, MAX_BOX_BARS)] = counts.get(min(number, MAX_BOX_BARS), 0) + pictures
    most = max(counts, default=0)
    rows: list[dict[str, Any]] = [{"boxes": n, "pictures": counts.get(n, 0)} for n in range(most + 1)]
    bars = alt.Chart(values(rows)).mark_bar(color=BLUE)
    title_x = f"boxes ({MAX_BOX_BARS} and more in the last bar)" if most == MAX_BOX_BARS else "boxes"
    chart = bars.encode(
        x=alt.X("boxes:O", title=title_x, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("pictures:Q", title="pictures"),
        tooltip=["boxes:O", "pictures:Q"],
    ).properties(width="container", height=180)
    title = f"{split.name}: pictures by their number of boxes"
    told = f"{title}: {split.boxes.pictures:,} pictures with 0 to {max(split.boxes.per_picture, default=0):,} boxes."
    table = Table(("boxes", "pictures"), [[str(r["boxes"]), f"{r['pictures']:,}"] for r in rows], numeric=(True, True))
    return figure(name, title, told, chart, table)


def draw_sizes(name: str, title: str, seen: LookedAt) -> Figure:
    """One circle a size, as large as there are pictures."""
    shown = seen.sizes[:MAX_SIZES]
    rows: list[dict[str, Any]] = [
        {"width": size.width, "height": size.height, "pictures": size.pictures} for size in shown
    ]
    points = alt.Chart(values(rows)).mark_circle(color=BLUE, opacity=0.55, stroke=BLUE, strokeWidth=1)
    area = alt.Scale(range=[25, 900], domain=[0, max(size.pictures for size in shown)])
    chart = points.encode(
        x=alt.X("width:Q", title="width (pixels)", scale=alt.Scale(zero=False, nice=True, padding=16)),
        y=alt.Y("height:Q", title="height (pixels)", scale=alt.Scale(zero=False, nice=True, padding=16)),
        size=alt.Size("pictures:Q", scale=area, legend=None),
        tooltip=["width:Q", "height:Q", "pictures:Q"],
    ).properties(width="container", height=280)
    most = shown[0]
    told = f"{title}: {len(seen.sizes):,} sizes, most often {most.width} × {most.height} ({most.pictures:,} pictures)"
    told += "." if len(shown) == len(seen.sizes) else f"; the {len(shown)} most frequent are drawn."
    cells = [[str(size.width), str(size.height), f"{size.pictures:,}"] for size in shown[:20]]
    table = Table(("width", "height", "pictures"), cells, "The most frequent sizes", numeric=(True,) * 3)
    return figure(name, title, told, chart, table)
