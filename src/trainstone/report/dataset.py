"""The page of a data set: what it holds, how its labels and sizes are spread, and some of its pictures."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, Facts, Figure, Gallery, Outline, Picture, Section
from trainstone.report.charts import BLUE, Rows, across, bars, figure, mark, tips, up
from trainstone.report.page import Page, write_page
from trainstone.results.dataset import ClassSummary, DatasetSummary, LookedAt, SamplePicture, SplitSummary
from trainstone.results.tables import Table, keep_filled
from trainstone.units import format_bytes, format_count, format_percent

MAX_BARS = 40
"""Of more classes the most and the least frequent are drawn, half of each."""
MAX_BOX_BARS = 40
MAX_SIZES = 400


def write_dataset_page(summary: DatasetSummary, target: Path) -> Page:
    page = build_dataset_page(summary)
    write_page(page, target)
    return page


def build_dataset_page(summary: DatasetSummary) -> Page:
    """Put the sections together; what a data set does not have is left out."""
    built = [
        build_overview(summary),
        build_samples(summary),
        build_labels(summary),
        build_boxes(summary),
        build_sizes(summary),
        build_bad(summary),
    ]
    name = summary.name or Path(summary.path).name or "data set"
    records = " and ".join(f"{split.records:,} in {split.name}" for split in summary.splits)
    pictures = format_count(sum(split.records for split in summary.splits), "picture")
    classes = "1 class" if len(summary.classes) == 1 else f"{len(summary.classes):,} classes"
    return Page(
        title=f"{name}: {records}",
        about=f"data · {name}",
        verdict=f"{name}: {pictures} of {classes}" + (f", {records}" if len(summary.splits) > 1 else ""),
        setting=f"{'detection' if summary.kind == 'detect' else 'classification'} · {summary.storage} · {summary.path}",
        sections=[section for section in built if section is not None],
    )


def build_overview(summary: DatasetSummary) -> Section:
    looked = sum(split.looked_at.pictures for split in summary.splits if split.looked_at)
    tiles = [
        ("pictures", f"{sum(split.records for split in summary.splits):,}"),
        ("classes", f"{len(summary.classes):,}"),
    ]
    num_bad = sum(split.num_bad for split in summary.splits)
    counted = [split.boxes for split in summary.splits if split.boxes]
    if counted:
        all_of_them = all(split.counted == split.records for split in summary.splits)
        where = "" if all_of_them else f" in {sum(boxes.pictures for boxes in counted):,} pictures"
        tiles.append((f"boxes{where}", f"{sum(boxes.boxes for boxes in counted):,}"))
    tiles += [("stored as", summary.storage), ("bad pictures met", f"{num_bad:,}")]
    rows = [describe_split(split) for split in summary.splits]
    columns = {"split": False, "pictures": True, "bytes": True, "files": True, "median size": False, "kinds": False}
    table = keep_filled(columns | {"colours": False, "bad": True}, rows)
    lead = f"Sizes, kinds and colours are those of {looked:,} pictures, evenly spaced over each split."
    return Section("overview", "At a glance", [Facts(tiles, big=True), table], lead)


def describe_split(split: SplitSummary) -> list[str]:
    seen = split.looked_at
    size = ""
    if split.bytes is not None:
        size = format_bytes(split.bytes)
    elif seen is not None:
        size = f"about {format_bytes(seen.bytes.mean * split.records)}"
    return [
        split.name,
        f"{split.records:,}",
        size,
        "" if split.shards is None else f"{split.shards:,}",
        "" if seen is None else f"{seen.width.median:.0f} × {seen.height.median:.0f}",
        "" if seen is None else describe_shares(seen.kinds, seen.pictures),
        "" if seen is None else describe_shares(seen.colours, seen.pictures),
        f"{split.num_bad:,}",
    ]


def describe_shares(counts: dict[str, int], total: int) -> str:
    """Return jpeg, or jpeg 99.2 %, png 0.8 %."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} {format_percent(count / total)}" for name, count in counts.items())


def build_samples(summary: DatasetSummary) -> Section | None:
    if not summary.samples:
        return None
    lead = "Evenly spaced over the split." if summary.kind == "detect" else "Evenly spaced over the classes."
    gallery = Gallery([draw_sample(sample) for sample in summary.samples])
    return Section("samples", "Pictures", [gallery], lead)


def draw_sample(sample: SamplePicture) -> Picture:
    """Return a picture for the page; boxes come from shares to its pixels."""
    width, height = sample.width, sample.height
    outlines = [
        Outline(
            left=round(box.left * width, 2),
            top=round(box.top * height, 2),
            width=round((box.right - box.left) * width, 2),
            height=round((box.bottom - box.top) * height, 2),
            text=f"{box.text}, a crowd" if box.crowd else box.text,
        )
        for box in sample.boxes
    ]
    return Picture(sample.jpeg_base64, width, height, sample.label, f"{sample.split} · {sample.name}", outlines)


def build_labels(summary: DatasetSummary) -> Section | None:
    """How often each class comes: by name where there are few, by rank where there are many."""
    what = "boxes" if summary.kind == "detect" else "pictures"
    names = name_classes(summary.classes)
    blocks: list[Block] = []
    doubts = []
    for number, split in enumerate(summary.splits):
        if split.outside:
            doubts.append((f"{split.name}: labels that no class has", f"{split.outside:,}"))
        if split.unlabelled:
            doubts.append((f"{split.name}: without a class", f"{split.unlabelled:,}"))
        if any(split.class_counts):
            blocks.append(draw_classes(f"labels-{number}", split, names, what))
    if doubts:
        blocks.append(Facts(doubts))
    if not blocks:
        return None
    return Section("labels", "Classes", blocks, describe_balance(summary, what))


def describe_balance(summary: DatasetSummary, what: str) -> str:
    """Say how even the first split's classes are, and whether all records were counted."""
    split = summary.splits[0]
    least, most = min(split.class_counts, default=0), max(split.class_counts, default=0)
    told = f"Every class of {split.name} has {most:,} {what}."
    if least != most:
        told = f"A class of {split.name} has {least:,} to {most:,} {what}."
    partly = [part for part in summary.splits if part.counted < part.records]
    sampled = ", ".join(f"{part.counted:,} of {part.records:,} in {part.name}" for part in partly)
    return f"{told} Not all pictures were counted: {sampled}." if partly else told


def build_boxes(summary: DatasetSummary) -> Section | None:
    blocks: list[Block] = [
        draw_boxes(f"boxes-{number}", split) for number, split in enumerate(summary.splits) if split.boxes
    ]
    if not blocks:
        return None
    means = [
        f"{split.boxes.boxes / split.boxes.pictures:.1f} in {split.name}"
        for split in summary.splits
        if split.boxes and split.boxes.pictures
    ]
    return Section("boxes", "Boxes of a picture", blocks, f"On average {', '.join(means)}." if means else "")


def build_sizes(summary: DatasetSummary) -> Section | None:
    """How large pictures are; no chart where all are alike."""
    rows, blocks = [], list[Block]()
    for number, split in enumerate(summary.splits):
        if split.looked_at is None:
            continue
        parts = (("width", split.looked_at.width), ("height", split.looked_at.height), ("bytes", split.looked_at.bytes))
        for what, spread in parts:
            show = format_bytes if what == "bytes" else "{:,.0f}".format
            cells = (spread.minimum, spread.p5, spread.median, spread.p95, spread.maximum, spread.mean)
            rows.append([f"{split.name}: {what}", *(show(value) for value in cells)])
        if len(split.looked_at.sizes) > 1:
            blocks.append(draw_sizes(f"sizes-{number}", f"{split.name}: sizes of pictures", split.looked_at))
    if not rows:
        return None
    columns = ("", "smallest", "5 % below", "median", "5 % above", "largest", "mean")
    table = Table(columns, rows, numeric=(False, *(True,) * 6))
    looked = ", ".join(
        f"{split.looked_at.pictures:,} of {split.records:,} in {split.name}"
        for split in summary.splits
        if split.looked_at
    )
    return Section("sizes", "Sizes of pictures", [*blocks, table], f"Looked at {looked}, evenly spaced.")


def build_bad(summary: DatasetSummary) -> Section | None:
    rows = [[bad.where, bad.why] for split in summary.splits for bad in split.bad]
    if not rows:
        return None
    total = sum(split.num_bad for split in summary.splits)
    lead = f"{format_count(total, 'picture')} met on the way cannot be used; trainstone data verify looks at all."
    return Section("bad", "Bad pictures", [Table(("where", "why"), rows)], lead)


def name_classes(classes: Sequence[ClassSummary]) -> list[str]:
    """Return what people call the classes, each once: ImageNet has two cranes, so they get their numbers."""
    texts = [entry.text or entry.name for entry in classes]
    often = Counter(texts)
    return [f"{text} #{label}" if often[text] > 1 else text for label, text in enumerate(texts)]


def draw_classes(name: str, split: SplitSummary, names: Sequence[str], what: str) -> Figure:
    pairs = sorted(zip(names, split.class_counts, strict=True), key=lambda pair: -pair[1])
    title = f"{split.name}: {what} of each class"
    told = f"{title}, from {pairs[-1][1]:,} ({pairs[-1][0]}) to {pairs[0][1]:,} ({pairs[0][0]})."
    if len(pairs) > MAX_BARS:
        title = f"{split.name}: {what} of the {MAX_BARS // 2} most and least frequent of {len(pairs):,} classes"
        pairs = pairs[: MAX_BARS // 2] + pairs[-MAX_BARS // 2 :]
    rows: Rows = [{"what": title, "x": count} for title, count in pairs]
    chart = bars(rows, across(what, tickCount=5), step=18, tooltip=tips(what="class", x=what))
    table = Table(("class", what), [[title, f"{count:,}"] for title, count in pairs], numeric=(False, True))
    return figure(name, title, told, chart, table)


def draw_boxes(name: str, split: SplitSummary) -> Figure:
    """One bar for each number of boxes; the last holds all above it."""
    assert split.boxes is not None
    counts: Counter[int] = Counter()
    for number, pictures in split.boxes.per_picture.items():
        counts[min(number, MAX_BOX_BARS)] += pictures
    most = max(counts, default=0)
    rows: Rows = [{"boxes": number, "y": counts[number]} for number in range(most + 1)]
    title_x = f"boxes ({MAX_BOX_BARS} and more in the last bar)" if most == MAX_BOX_BARS else "boxes"
    x = alt.X("boxes:O", title=title_x, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    layers = [mark("bar", rows, {"color": BLUE}, x=x, y=up("pictures"), tooltip=tips("boxes", y="pictures"))]
    title = f"{split.name}: pictures by their number of boxes"
    told = f"{title}: {split.boxes.pictures:,} pictures with 0 to {max(split.boxes.per_picture, default=0):,} boxes."
    table = Table(("boxes", "pictures"), [[str(r["boxes"]), f"{r['y']:,}"] for r in rows], numeric=(True, True))
    return figure(name, title, told, layers, table, height=180)


def draw_sizes(name: str, title: str, seen: LookedAt) -> Figure:
    """One circle a size, as large as there are pictures."""
    shown = seen.sizes[:MAX_SIZES]
    rows: Rows = [{"x": size.width, "y": size.height, "pictures": size.pictures} for size in shown]
    area = alt.Scale(range=[25, 900], domain=[0, max(size.pictures for size in shown)])
    scale: dict[str, Any] = {"zero": False, "nice": True, "padding": 16}
    layers = [
        mark(
            "circle", rows, {"color": BLUE, "opacity": 0.55, "stroke": BLUE, "strokeWidth": 1},
            x=across("width (pixels)", **scale), y=up("height (pixels)", **scale),
            size=alt.Size("pictures:Q", scale=area, legend=None), tooltip=tips("pictures", x="width", y="height"),
        )
    ]  # fmt: skip
    most = shown[0]
    told = f"{title}: {len(seen.sizes):,} sizes, most often {most.width} × {most.height} ({most.pictures:,} pictures)"
    told += "." if len(shown) == len(seen.sizes) else f"; the {len(shown)} most frequent are drawn."
    cells = [[str(size.width), str(size.height), f"{size.pictures:,}"] for size in shown[:20]]
    table = Table(("width", "height", "pictures"), cells, "The most frequent sizes", numeric=(True,) * 3)
    return figure(name, title, told, layers, table, height=280)
