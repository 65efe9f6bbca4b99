"""The page of a data set: overview, class and size distributions, sample images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from trainstone.report.blocks import Block, FactsBlock, Gallery, Image, Outline, Section
from trainstone.report.charts import BLUE, Rows, bar_chart, build_figure, mark, tooltips, x_axis, y_axis
from trainstone.report.page import Page
from trainstone.results.schema.dataset import ClassSummary, DatasetSummary, Quantiles
from trainstone.results.tables import Table, build_filled_table
from trainstone.units import format_bytes, format_count, format_percent

MAX_BARS = 40  # with more classes, the most and the least frequent are drawn, half each
MAX_BOX_BARS = 40
MAX_SIZES = 400


def build_dataset_page(summary: DatasetSummary) -> Page:
    """Build the page; sections without data are skipped."""
    built = [
        build(summary) for build in (build_overview, build_samples, build_labels, build_boxes, build_sizes, build_bad)
    ]
    name = summary.name or Path(summary.path).name or "data set"
    records = " and ".join(f"{split.records:,} in {split.name}" for split in summary.splits)
    images = format_count(sum(split.records for split in summary.splits), "image")
    classes = "1 class" if len(summary.classes) == 1 else f"{len(summary.classes):,} classes"
    return Page(
        title=f"{name}: {records}",
        about=f"data · {name}",
        verdict=f"{name}: {images} of {classes}" + (f", {records}" if len(summary.splits) > 1 else ""),
        setting=f"{'detection' if summary.kind == 'detect' else 'classification'} · {summary.storage} · {summary.path}",
        sections=[section for section in built if section is not None],
    )


def build_overview(summary: DatasetSummary) -> Section:
    num_sampled = sum(split.sampled.images for split in summary.splits if split.sampled)
    tiles = [
        ("images", f"{sum(split.records for split in summary.splits):,}"),
        ("classes", f"{len(summary.classes):,}"),
    ]
    num_bad = sum(split.num_bad for split in summary.splits)
    counted = [split.boxes for split in summary.splits if split.boxes]
    if counted:
        all_of_them = all(split.counted == split.records for split in summary.splits)
        where = "" if all_of_them else f" in {sum(boxes.images for boxes in counted):,} images"
        tiles.append((f"boxes{where}", f"{sum(boxes.boxes for boxes in counted):,}"))
    tiles += [("stored as", summary.storage), ("bad images found", f"{num_bad:,}")]
    rows = []
    for split in summary.splits:
        size, shown = "" if split.bytes is None else format_bytes(split.bytes), [""] * 3
        if seen := split.sampled:
            size = size or f"about {format_bytes(seen.bytes.mean * split.records)}"
            shares = [describe_shares(counts, seen.images) for counts in (seen.kinds, seen.colours)]
            shown = [f"{seen.width.median:.0f} × {seen.height.median:.0f}", *shares]
        shards = "" if split.shards is None else f"{split.shards:,}"
        rows.append([split.name, f"{split.records:,}", size, shards, *shown, f"{split.num_bad:,}"])
    columns = {"split": False, "images": True, "bytes": True, "files": True, "median size": False, "format": False}
    table = build_filled_table(columns | {"colour mode": False, "bad": True}, rows)
    lead = f"Sizes, file formats and colour modes are from {num_sampled:,} images, evenly spaced over each split."
    return Section("overview", "At a glance", [FactsBlock(tiles, big=True), table], lead)


def describe_shares(counts: dict[str, int], total: int) -> str:
    """Return counts as text, e.g. `jpeg 99.2 %, png 0.8 %`."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} {format_percent(count / total)}" for name, count in counts.items())


def build_samples(summary: DatasetSummary) -> Section | None:
    if not summary.samples:
        return None
    images = []
    for sample in summary.samples:
        width, height = sample.width, sample.height
        outlines = [  # relative coordinates to pixels
            Outline(
                left=round(box.left * width, 2),
                top=round(box.top * height, 2),
                width=round((box.right - box.left) * width, 2),
                height=round((box.bottom - box.top) * height, 2),
                text=f"{box.text} (crowd)" if box.crowd else box.text,
            )
            for box in sample.boxes
        ]
        note = f"{sample.split} · {sample.name}"
        images.append(Image(sample.jpeg_base64, width, height, sample.label, note, outlines))
    lead = "Evenly spaced over the split." if summary.kind == "detect" else "Evenly spaced over the classes."
    return Section("samples", "Images", [Gallery(images)], lead)


def build_labels(summary: DatasetSummary) -> Section | None:
    """Draw the number of images or boxes per class; with many classes only the most and least frequent."""
    what = "boxes" if summary.kind == "detect" else "images"
    names = name_classes(summary.classes)
    blocks: list[Block] = []
    warnings = []
    for number, split in enumerate(summary.splits):
        if split.outside:
            warnings.append((f"{split.name}: labels outside the class list", f"{split.outside:,}"))
        if split.unlabelled:
            warnings.append((f"{split.name}: unlabelled", f"{split.unlabelled:,}"))
        if not any(split.class_counts):
            continue
        pairs = sorted(zip(names, split.class_counts, strict=True), key=lambda pair: -pair[1])
        title = f"{split.name}: {what} per class"
        alt_text = f"{title}, from {pairs[-1][1]:,} ({pairs[-1][0]}) to {pairs[0][1]:,} ({pairs[0][0]})."
        if len(pairs) > MAX_BARS:
            title = f"{split.name}: {what} of the {MAX_BARS // 2} most and least frequent of {len(pairs):,} classes"
            pairs = pairs[: MAX_BARS // 2] + pairs[-MAX_BARS // 2 :]
        rows: Rows = [{"what": name, "x": count} for name, count in pairs]
        chart = bar_chart(rows, x_axis(what, tickCount=5), step=18, tooltip=tooltips(what="class", x=what))
        table = Table(("class", what), [[name, f"{count:,}"] for name, count in pairs], numeric=(False, True))
        blocks.append(build_figure(f"labels-{number}", title, alt_text, chart, table))
    if warnings:
        blocks.append(FactsBlock(warnings))
    if not blocks:
        return None
    split = summary.splits[0]
    least, most = min(split.class_counts, default=0), max(split.class_counts, default=0)
    lead = f"Every class of {split.name} has {most:,} {what}."
    if least != most:
        lead = f"A class of {split.name} has {least:,} to {most:,} {what}."
    partly = [part for part in summary.splits if part.counted < part.records]
    sampled = ", ".join(f"{part.counted:,} of {part.records:,} in {part.name}" for part in partly)
    return Section(
        "labels", "Classes", blocks, f"{lead} Only a part of the images was counted: {sampled}." if partly else lead
    )


def build_boxes(summary: DatasetSummary) -> Section | None:
    """Draw a histogram of boxes per image; the last bar holds all larger numbers."""
    blocks, means = [], []
    for number, split in enumerate(summary.splits):
        if not split.boxes:
            continue
        if split.boxes.images:
            means.append(f"{split.boxes.boxes / split.boxes.images:.1f} in {split.name}")
        counts: Counter[int] = Counter()
        for num_boxes, images in split.boxes.per_image.items():
            counts[min(num_boxes, MAX_BOX_BARS)] += images
        most = max(counts, default=0)
        rows: Rows = [{"boxes": num_boxes, "y": counts[num_boxes]} for num_boxes in range(most + 1)]
        title_x = f"boxes ({MAX_BOX_BARS} and more in the last bar)" if most == MAX_BOX_BARS else "boxes"
        x = alt.X("boxes:O", title=title_x, axis=alt.Axis(labelAngle=0, labelOverlap=True))
        layers = [mark("bar", rows, {"color": BLUE}, x=x, y=y_axis("images"), tooltip=tooltips("boxes", y="images"))]
        title = f"{split.name}: images by their number of boxes"
        largest = max(split.boxes.per_image, default=0)
        alt_text = f"{title}: {split.boxes.images:,} images with 0 to {largest:,} boxes."
        table = Table(("boxes", "images"), [[str(r["boxes"]), f"{r['y']:,}"] for r in rows], numeric=(True, True))
        blocks.append(build_figure(f"boxes-{number}", title, alt_text, layers, table, height=180))
    lead = f"On average {', '.join(means)}." if means else ""
    return Section("boxes", "Boxes per image", blocks, lead) if blocks else None


def build_sizes(summary: DatasetSummary) -> Section | None:
    """Tabulate and draw image sizes; no chart if all images have the same size."""
    rows, blocks, measured = [], list[Block](), []
    for number, split in enumerate(summary.splits):
        if split.sampled is None:
            continue
        measured.append(f"{split.sampled.images:,} of {split.records:,} in {split.name}")
        for what in ("width", "height", "bytes"):
            spread: Quantiles = getattr(split.sampled, what)
            show = format_bytes if what == "bytes" else "{:,.0f}".format
            ends = (spread.minimum, spread.p5, spread.median, spread.p95, spread.maximum, spread.mean)
            rows.append([f"{split.name}: {what}", *map(show, ends)])
        sizes = split.sampled.sizes
        if len(sizes) < 2:
            continue
        shown = sizes[:MAX_SIZES]  # one circle each; its area is the number of images
        circles: Rows = [{"x": size.width, "y": size.height, "images": size.images} for size in shown]
        area = alt.Scale(range=[25, 900], domain=[0, max(size.images for size in shown)])
        scale: dict[str, Any] = {"zero": False, "nice": True, "padding": 16}
        look = {"color": BLUE, "opacity": 0.55, "stroke": BLUE, "strokeWidth": 1}
        x, y = x_axis("width (pixels)", **scale), y_axis("height (pixels)", **scale)
        count = alt.Size("images:Q", scale=area, legend=None)
        layers = [
            mark("circle", circles, look, x=x, y=y, size=count, tooltip=tooltips("images", x="width", y="height"))
        ]
        title, most = f"{split.name}: image sizes", shown[0]
        alt_text = f"{title}: {len(sizes):,} sizes, most often {most.width} × {most.height} ({most.images:,} images)"
        alt_text += "." if len(shown) == len(sizes) else f"; the {len(shown)} most frequent are drawn."
        cells = [[str(size.width), str(size.height), f"{size.images:,}"] for size in shown[:20]]
        table = Table(("width", "height", "images"), cells, "The most frequent sizes", numeric=(True,) * 3)
        blocks.append(build_figure(f"sizes-{number}", title, alt_text, layers, table, height=280))
    if not rows:
        return None
    columns = ("", "minimum", "p5", "median", "p95", "maximum", "mean")
    blocks.append(Table(columns, rows, numeric=(False, *(True,) * 6)))
    return Section("sizes", "Image sizes", blocks, f"Measured on {', '.join(measured)}, evenly spaced.")


def build_bad(summary: DatasetSummary) -> Section | None:
    rows = [[bad.where, bad.why] for split in summary.splits for bad in split.bad]
    total = format_count(sum(split.num_bad for split in summary.splits), "image")
    lead = f"{total} found while sampling cannot be used; run `trainstone data verify` to check all images."
    return Section("bad", "Bad images", [Table(("where", "why"), rows)], lead) if rows else None


def name_classes(classes: Sequence[ClassSummary]) -> list[str]:
    """Return unique class names; duplicates get their number, because ImageNet has two classes named crane."""
    texts = [entry.text or entry.name for entry in classes]
    counts = Counter(texts)
    return [f"{text} #{label}" if counts[text] > 1 else text for label, text in enumerate(texts)]
