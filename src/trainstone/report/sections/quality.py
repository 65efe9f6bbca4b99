"""What an evaluation found beside its metric: charts and tables it brought along, and images with boxes."""

import base64
import re
from collections.abc import Sequence

from trainstone.report import charts
from trainstone.report.blocks import Block, Gallery, Image, Outline, Prose, Section
from trainstone.report.charts import PALETTE, Rows, mark, tips
from trainstone.report.view import RunView
from trainstone.results.schema.quality import QualitySample, QualityTable, ShownBox
from trainstone.results.tables import format_rows, is_number, quality_table
from trainstone.results.training import describe_metric, find_best, format_epochs
from trainstone.units import format_count

HEIGHT = 280
MOST_BARS = 400
MOST_ROWS = 2000
MIN_SCORE = 0.3  # found boxes below it are hidden until the reader asks for them
MOST_IMAGES = 48
MOST_BOXES = 300
MOST_BYTES = 2_000_000  # of one file: the page carries them all
MOST_LETTERS = 28
SHAPE = 4 / 3  # width over height of an image's place on the page (templates/style.css)
LETTERS_A_WIDTH = 27  # height of the words in an image, as a part of the place's width
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
        lead = f"Of the evaluation with {describe_metric(metric, value, quality.target)}{when}."
    return Section("quality", "What was found", blocks, lead) if blocks else None


def draw_quality_table(number: int, table: QualityTable) -> list[Block]:
    """Return a chart and its note, or a table; rows that do not fit the columns are left out.

    Lines: one for each name in the third column, with axes from 0 to 1 where everything lies there. Bars: one for each
    row, with its value; the other columns are shown when it is pointed at.
    """
    columns, rows = table.columns, [row for row in table.rows[:MOST_ROWS] if len(row) == len(table.columns)]
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
        whole = all(0 <= point[axis] <= 1 for point in found for axis in ("x", "y"))
        scale = {"domain": [0, 1]} if whole else {"zero": False, "nice": True}
        x, y = charts.across(columns[0], tickCount=10, **scale), charts.up(columns[1], tickCount=5, **scale)
        color, tooltip = charts.colours(dict(zip(names, PALETTE, strict=False))), tips(what="line", shown="is")
        layers = [
            mark("line", found, {"strokeWidth": 2}, x=x, y=y, color=color),
            mark("point", found, {"size": 60, "opacity": 0}, x=x, y=y, tooltip=tooltip),
        ]  # the points are there to be pointed at
        drawn = charts.figure(name, table.title, "", layers, quality_table(columns, measured), height=HEIGHT)
    elif table.drawn == "bars" and measured:
        measured = measured[:MOST_BARS]
        found = [
            {"what": text[0], "x": row[1], "shown": text[1]}
            | {"more": ", ".join(f"{column} {cell}" for column, cell in zip(columns[1:], text[1:], strict=True))}
            for row, text in zip(measured, format_rows(measured), strict=True)
        ]
        x = charts.across(columns[1], domain=charts.leave_room([bar["x"] for bar in found]), nice=False, tickCount=5)
        chart = charts.bars(found, x, step=18, label="shown", tooltip=tips(what="row", more="is"))
        drawn = charts.figure(name, table.title, "", chart, quality_table(columns, measured))
    else:
        caption = f"{table.title}. {table.note}" if table.note else table.title
        return [quality_table(columns, rows, caption)] if rows else []
    return [drawn, Prose(table.note)] if table.note else [drawn]


def read_gallery(view: RunView, images: Sequence[QualitySample]) -> tuple[Gallery | None, list[str]]:
    """Return the images that can be shown, and what is to be said of the others."""
    shown, left_out = [], []
    for image in images[:MOST_IMAGES]:
        data, fault = read_jpeg(view, image)
        if data is None:
            left_out.append(f"{image.file} ({fault})")
        else:
            shown.append(draw_image(image, data))
    notes = []
    if left_out:
        notes.append(f"{format_count(len(left_out), 'image')} left out: {', '.join(left_out[:5])}.")
    if len(images) > MOST_IMAGES:
        notes.append(f"The first {MOST_IMAGES} of {len(images)} images are shown.")
    return (Gallery(shown, min_score=MIN_SCORE) if shown else None), notes


def read_jpeg(view: RunView, image: QualitySample) -> tuple[bytes | None, str]:
    """Return an image's bytes, or None and why: nothing outside of the run folder, nothing but a JPEG is read."""
    if not image.width or not image.height:
        return None, "it has no size"
    path = view.find_inside(image.file)
    if path is None or not path.is_file():
        return None, "not in the run folder"
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    except OSError as err:
        return None, err.strerror or "unreadable"
    return (data, "") if data.startswith(JPEG_START) else (None, "not a JPEG of at most 2 MB")


def draw_image(image: QualitySample, data: bytes) -> Image:
    """True boxes first, so that found ones lie on them; of those the surest last, on top of all."""
    true = [box for box in image.boxes if box.score is None][:MOST_BOXES]
    found = sorted((box for box in image.boxes if box.score is not None), key=lambda box: box.score or 0.0)
    found = found[-MOST_BOXES:]
    sure = [box for box in reversed(found) if (box.score or 0.0) >= MIN_SCORE]
    letter = max(image.width, SHAPE * image.height) / LETTERS_A_WIDTH
    message = [f"{box.label} {box.score:.2f} {name_look(box)}" for box in sure[:12]]
    missed = [box.label for box in true if box.right_one is False][:12]
    words = f"{image.title}: true boxes: {len(true)}; found: {', '.join(message) or 'nothing'}"
    return Image(
        base64.b64encode(data).decode("ascii"),
        image.width,
        image.height,
        image.title,
        outlines=[outline(image, box, letter) for box in (*true, *found)],
        alt=words + (f"; never found: {', '.join(missed)}." if missed else "."),
        num_true=len(true),
        num_right=min(len(true), sum(box.right_one is True for box in sure)),  # each right one finds another
        letter_height=round(letter, 2),
    )


def name_look(box: ShownBox) -> str:
    if box.score is None:
        return "true"
    return "wrong" if box.right_one is False else "right"


def outline(image: QualitySample, box: ShownBox, letter: float) -> Outline:
    """Return a box in the image's pixels, kept inside it, with the words that stand beside it."""
    left, right = (min(1.0, max(0.0, edge)) * image.width for edge in (box.left, box.right))
    top, bottom = (min(1.0, max(0.0, edge)) * image.height for edge in (box.top, box.bottom))
    look = name_look(box)
    label = box.label if len(box.label) <= MOST_LETTERS else box.label[: MOST_LETTERS - 1] + "…"
    if box.score is None:
        missed = box.right_one is False
        text, tag = f"{box.label}, true" + (", never found" if missed else ""), label if missed else ""
        base = max(letter, bottom - 0.3 * letter)
    else:
        text = f"{box.label}, found with score {box.score:.2f}, {look}"
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
