"""Report section on an evaluation's details: its charts and tables, and sample images with boxes."""

import base64
import re
from collections.abc import Sequence

from trainstone.report import charts
from trainstone.report.blocks import Block, Gallery, Image, Outline, Prose, Section
from trainstone.report.charts import PALETTE, Rows, mark, tooltips
from trainstone.report.view import RunView
from trainstone.results.schema.quality import QualitySample, QualityTable, ShownBox
from trainstone.results.tables import build_quality_table, format_rows, is_number
from trainstone.results.training import describe_metric, find_best, format_epochs
from trainstone.units import format_count

HEIGHT = 280
MAX_BARS = 400
MAX_ROWS = 2000
MIN_SCORE = 0.3  # detections below it are hidden until the reader moves the slider
MAX_IMAGES = 48
MAX_BOXES = 300
MAX_BYTES = 2_000_000  # per file: the page embeds all of them
MAX_LABEL_LENGTH = 28
IMAGE_ASPECT = 4 / 3  # aspect ratio of an image on the page (templates/style.css)
LETTERS_PER_WIDTH = 27  # sets the font size in an image
JPEG_START = b"\xff\xd8\xff"


def build(view: RunView) -> Section | None:
    quality = view.result.quality
    if quality is None or not (quality.tables or quality.samples):
        return None
    gallery, notes = read_gallery(view, quality.samples)
    blocks: list[Block] = [gallery] if gallery is not None else []
    blocks += [Prose(note) for note in notes]
    for number, table in enumerate(quality.tables):
        blocks += draw_quality_table(number, table)
    lead, metric, value = "", quality.metric, quality.value
    if find_best(quality) is not None and value is not None:
        after = next((found.epoch for found in quality.history if found.metrics.get(metric) == value), None)
        when = "" if after is None else f", after {format_epochs(after)}"
        lead = f"Evaluation with {describe_metric(metric, value, quality.target)}{when}."
    return Section("quality", "Evaluation details", blocks, lead) if blocks else None


def draw_quality_table(number: int, table: QualityTable) -> list[Block]:
    """Return a chart and its note, or a table; rows with another number of cells than columns are skipped.

    Lines: one per name in the third column; the axes go from 0 to 1 if all values do. Bars: one per row, labelled with
    its value; the tooltip shows the other columns.
    """
    columns, rows = table.columns, [row for row in table.rows[:MAX_ROWS] if len(row) == len(table.columns)]
    name = f"quality-{number}-{re.sub('[^a-z0-9]+', '-', table.name.lower())}"[:60].strip("-")
    measured = [row for row in rows if is_number(row[1])] if len(columns) > 1 else []
    if table.drawn == "lines" and measured and len(columns) > 2:
        measured = [row for row in measured if is_number(row[0])]
        names = list(dict.fromkeys(str(row[2]) for row in measured))[: len(PALETTE)]
        found: Rows = [
            {"x": row[0], "y": row[1], "what": str(row[2]), "shown": f"{text[1]} at {text[0]}"}
            for row, text in zip(measured, format_rows(measured), strict=True)
            if str(row[2]) in names
        ]
        unit_range = all(0 <= point[axis] <= 1 for point in found for axis in ("x", "y"))
        scale = {"domain": [0, 1]} if unit_range else {"zero": False, "nice": True}
        x, y = charts.x_axis(columns[0], tickCount=10, **scale), charts.y_axis(columns[1], tickCount=5, **scale)
        color = charts.colour_scale(dict(zip(names, PALETTE, strict=False)))
        tooltip = tooltips(what="line", shown="value")
        layers = [
            mark("line", found, {"strokeWidth": 2}, x=x, y=y, color=color),
            mark("point", found, {"size": 60, "opacity": 0}, x=x, y=y, tooltip=tooltip),
        ]  # invisible points carry the tooltips
        drawn = charts.build_figure(
            name, table.title, "", layers, build_quality_table(columns, measured), height=HEIGHT
        )
    elif table.drawn == "bars" and measured:
        measured = measured[:MAX_BARS]
        found = [
            {"what": text[0], "x": row[1], "shown": text[1]}
            | {"more": ", ".join(f"{column} {cell}" for column, cell in zip(columns[1:], text[1:], strict=True))}
            for row, text in zip(measured, format_rows(measured), strict=True)
        ]
        x = charts.x_axis(columns[1], domain=charts.pad_domain([bar["x"] for bar in found]), nice=False, tickCount=5)
        chart = charts.bar_chart(found, x, step=18, label="shown", tooltip=tooltips(what="row", more="values"))
        drawn = charts.build_figure(name, table.title, "", chart, build_quality_table(columns, measured))
    else:
        caption = f"{table.title}. {table.note}" if table.note else table.title
        return [build_quality_table(columns, rows, caption)] if rows else []
    return [drawn, Prose(table.note)] if table.note else [drawn]


def read_gallery(view: RunView, images: Sequence[QualitySample]) -> tuple[Gallery | None, list[str]]:
    """Return the images that can be shown, and notes on the others."""
    shown, skipped = [], []
    for image in images[:MAX_IMAGES]:
        data, fault = read_jpeg(view, image)
        if data is None:
            skipped.append(f"{image.file} ({fault})")
        else:
            shown.append(draw_image(image, data))
    notes = []
    if skipped:
        notes.append(f"{format_count(len(skipped), 'image')} skipped: {', '.join(skipped[:5])}.")
    if len(images) > MAX_IMAGES:
        notes.append(f"The first {MAX_IMAGES} of {len(images)} images are shown.")
    return (Gallery(shown, min_score=MIN_SCORE) if shown else None), notes


def read_jpeg(view: RunView, image: QualitySample) -> tuple[bytes | None, str]:
    """Return an image's bytes, or None and the reason; only JPEG files inside the run folder are read."""
    if not image.width or not image.height:
        return None, "its size is 0"
    path = view.find_inside(image.file)
    if path is None or not path.is_file():
        return None, "not in the run folder"
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
    except OSError as err:
        return None, err.strerror or "unreadable"
    return (data, "") if data.startswith(JPEG_START) else (None, "not a JPEG of at most 2 MB")


def draw_image(image: QualitySample, data: bytes) -> Image:
    """Return an image with its boxes: ground truth first, then detections on top, by ascending score."""
    true = [box for box in image.boxes if box.score is None][:MAX_BOXES]
    found = sorted((box for box in image.boxes if box.score is not None), key=lambda box: box.score or 0.0)
    found = found[-MAX_BOXES:]
    sure = [box for box in reversed(found) if (box.score or 0.0) >= MIN_SCORE]
    letter = max(image.width, IMAGE_ASPECT * image.height) / LETTERS_PER_WIDTH
    detected = [f"{box.label} {box.score:.2f} {classify_box(box)}" for box in sure[:12]]
    missed = [box.label for box in true if box.correct is False][:12]
    text = f"{image.title}: {len(true)} ground-truth boxes; detections: {', '.join(detected) or 'none'}"
    return Image(
        base64.b64encode(data).decode("ascii"),
        image.width,
        image.height,
        image.title,
        outlines=[build_outline(image, box, letter) for box in (*true, *found)],
        alt=text + (f"; missed: {', '.join(missed)}." if missed else "."),
        num_true=len(true),
        num_correct=min(len(true), sum(box.correct is True for box in sure)),
        letter_height=round(letter, 2),
    )


def classify_box(box: ShownBox) -> str:
    if box.score is None:
        return "truth"
    return "wrong" if box.correct is False else "correct"


def build_outline(image: QualitySample, box: ShownBox, letter: float) -> Outline:
    """Return a box in pixels, clipped to the image, with its label."""
    left, right = (min(1.0, max(0.0, edge)) * image.width for edge in (box.left, box.right))
    top, bottom = (min(1.0, max(0.0, edge)) * image.height for edge in (box.top, box.bottom))
    look = classify_box(box)
    label = box.label if len(box.label) <= MAX_LABEL_LENGTH else box.label[: MAX_LABEL_LENGTH - 1] + "…"
    if box.score is None:
        missed = box.correct is False
        text, tag = f"{box.label}, ground truth" + (", missed" if missed else ""), label if missed else ""
        base = max(letter, bottom - 0.3 * letter)
    else:
        text = f"{box.label}, detected with score {box.score:.2f}, {look}"
        tag = f"{'✗ ' if look == 'wrong' else ''}{label} {box.score:.2f}"
        base = max(letter, top - 0.25 * letter)
    return Outline(
        left=round(left, 2),
        top=round(top, 2),
        width=round(max(0.0, right - left), 2),
        height=round(max(0.0, bottom - top), 2),
        text=text,
        look=look,
        score=box.score,
        tag=tag,
        tag_left=round(max(0.0, min(left, image.width - 0.64 * letter * len(tag))), 2),
        tag_base=round(base, 2),
    )
