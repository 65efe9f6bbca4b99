"""What an evaluation found beside its metric: charts and tables it brought along, and pictures with boxes."""

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path

from trainstone.report.blocks import Block, Figure, Gallery, Outline, Picture, Prose, Section
from trainstone.report.charts import (
    PALETTE,
    Rows,
    across,
    bars,
    colours,
    figure,
    mark,
    round_sensibly,
    tips,
    up,
)
from trainstone.report.view import RunView
from trainstone.results.learning import describe_metric, find_best, format_epochs
from trainstone.results.quality import Quality, QualityPicture, QualityTable, ShownBox
from trainstone.results.tables import Cell, format_rows, is_number, quality_table
from trainstone.units import format_count

HEIGHT = 280
MOST_BARS = 400
MOST_ROWS = 2000
MIN_SCORE = 0.3
"""Found boxes below it are hidden until the reader asks for them."""
MOST_PICTURES = 48
MOST_BOXES = 300
MOST_BYTES = 2_000_000
"""Of one file: the page carries them all."""
MOST_LETTERS = 28
SHAPE = 4 / 3
"""Width over height of a picture's place on the page (templates/style.css)."""
LETTERS_A_WIDTH = 27
"""Height of the words in a picture, as a part of the place's width."""
JPEG_START = b"\xff\xd8\xff"


def build(view: RunView) -> Section | None:
    """Everything in the order of the result; a run without any has no such section."""
    quality = view.result.quality
    if quality is None or not (quality.tables or quality.pictures):
        return None
    gallery, notes = read_gallery(view.path, quality.pictures)
    blocks: list[Block] = [gallery] if gallery is not None else []
    blocks += [Prose(note) for note in notes]
    for number, table in enumerate(quality.tables):
        blocks += draw_quality_table(number, table)
    return Section("quality", "What was found", blocks, describe_evaluation(quality)) if blocks else None


def describe_evaluation(quality: Quality) -> str:
    """Say which evaluation this is."""
    best = find_best(quality)
    if best is None or quality.value is None:
        return ""
    after = next((found.epoch for found in quality.history if found.metrics.get(quality.metric) == quality.value), None)
    when = "" if after is None else f", after {format_epochs(after)}"
    return f"Of the evaluation with {describe_metric(quality.metric, quality.value, quality.target)}{when}."


def draw_quality_table(number: int, table: QualityTable) -> list[Block]:
    """Return a chart and its note, or a table; rows that do not fit the columns are left out."""
    rows = [row for row in table.rows[:MOST_ROWS] if len(row) == len(table.columns)]
    name = f"quality-{number}-{re.sub('[^a-z0-9]+', '-', table.name.lower())}"[:60].strip("-")
    drawn: Figure | None = None
    if table.drawn == "lines" and len(table.columns) >= 3:
        drawn = draw_lines(name, table, [row for row in rows if is_number(row[0]) and is_number(row[1])])
    if table.drawn == "bars" and len(table.columns) >= 2:
        drawn = draw_bars(name, table, [row for row in rows if is_number(row[1])][:MOST_BARS])
    if drawn is not None:
        return [drawn, Prose(table.note)] if table.note else [drawn]
    caption = f"{table.title}. {table.note}" if table.note else table.title
    return [quality_table(table.columns, rows, caption)] if rows else []


def draw_lines(name: str, table: QualityTable, rows: list[list[Cell]]) -> Figure | None:
    """One line for each name in the third column; both axes from 0 to 1 where everything lies there."""
    if not rows:
        return None
    names = list(dict.fromkeys(str(row[2]) for row in rows))[: len(PALETTE)]
    found: Rows = [
        {"x": row[0], "y": row[1], "what": str(row[2]), "told": f"{text[1]} at {text[0]}"}
        for row, text in zip(rows, format_rows(rows), strict=True)
        if str(row[2]) in names
    ]
    whole = all(0 <= point[axis] <= 1 for point in found for axis in ("x", "y"))
    scale = {"domain": [0, 1]} if whole else {"zero": False, "nice": True}
    x, y = across(table.columns[0], tickCount=10, **scale), up(table.columns[1], tickCount=5, **scale)
    layers = [
        mark("line", found, {"strokeWidth": 2}, x=x, y=y, color=colours(dict(zip(names, PALETTE, strict=False)))),
        mark("point", found, {"size": 60, "opacity": 0}, x=x, y=y, tooltip=tips(what="line", told="is")),
    ]  # the points are there to be pointed at
    ends: dict[str, list[str]] = {}
    for point in found:
        ends.setdefault(point["what"], []).append(point["told"])
    told = "; ".join(f"{line}: {passed[0]}, {passed[-1]}" for line, passed in ends.items())
    told = f"{table.title}: {table.columns[1]} over {table.columns[0]}. {told}."
    return figure(name, table.title, told, layers, quality_table(table.columns, rows), height=HEIGHT)


def draw_bars(name: str, table: QualityTable, rows: list[list[Cell]]) -> Figure | None:
    """One bar a row, with its value; the other columns are told when it is pointed at."""
    if not rows:
        return None
    texts = format_rows(rows)
    found: Rows = [
        {"what": place, "x": row[1], "told": text[1], "more": describe_more(table.columns, text)}
        for place, row, text in zip(name_places(texts), rows, texts, strict=True)
    ]
    least, most = (pick(0.0, *(bar["x"] for bar in found)) for pick in (min, max))
    room = 1.22 * (most - least) or 1.0  # for the value beside the longest bar
    domain = [round_sensibly(least), round_sensibly(least + room)]
    x = across(table.columns[1], domain=domain, nice=False, tickCount=5)
    chart = bars(found, x, step=18, label="told", tooltip=tips(what="row", more="is"))
    longest, shortest = (pick(found, key=lambda bar: bar["x"]) for pick in (max, min))
    told = f"{table.title}: {table.columns[1]} from {longest['told']} ({longest['what']})"
    told = f"{told} to {shortest['told']} ({shortest['what']})."
    return figure(name, table.title, told, chart, quality_table(table.columns, rows))


def name_places(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the first column, each name once: equal ones would be one bar."""
    seen: dict[str, int] = {}
    names = []
    for text in texts:
        name = text[0] or "?"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def describe_more(columns: Sequence[str], text: Sequence[str]) -> str:
    """Return AP 0.412, AP50 0.633, true boxes 120."""
    return ", ".join(f"{column} {cell}" for column, cell in zip(columns[1:], text[1:], strict=True) if cell)


def read_gallery(folder: Path, pictures: Sequence[QualityPicture]) -> tuple[Gallery | None, list[str]]:
    """Return the pictures that can be shown, and what is to be said of the others."""
    shown, left_out = [], []
    for picture in pictures[:MOST_PICTURES]:
        data, fault = read_jpeg(folder, picture)
        if data is None:
            left_out.append(f"{picture.file} ({fault})")
        else:
            shown.append(draw_picture(picture, data))
    notes = []
    if left_out:
        notes.append(f"{format_count(len(left_out), 'picture')} left out: {', '.join(left_out[:5])}.")
    if len(pictures) > MOST_PICTURES:
        notes.append(f"The first {MOST_PICTURES} of {len(pictures)} pictures are shown.")
    return (Gallery(shown, min_score=MIN_SCORE) if shown else None), notes


def read_jpeg(folder: Path, picture: QualityPicture) -> tuple[bytes | None, str]:
    """Return a picture's bytes, or None and why: nothing outside of the run folder, nothing but a JPEG is read."""
    if not picture.width or not picture.height:
        return None, "it has no size"
    if "\0" in picture.file:
        return None, "no name of a file"
    path = Path(os.path.realpath(folder / picture.file))
    if not path.is_relative_to(os.path.realpath(folder)):
        return None, "outside of the run folder"
    try:
        if not path.is_file():
            return None, "missing"
        if path.stat().st_size > MOST_BYTES:
            return None, "too large"
        data = path.read_bytes()
    except OSError as err:
        return None, err.strerror or "unreadable"
    return (data, "") if data.startswith(JPEG_START) else (None, "no JPEG")


def draw_picture(picture: QualityPicture, data: bytes) -> Picture:
    """True boxes first, so that found ones lie on them; of those the surest last, on top of all."""
    boxes = [box for box in picture.boxes if is_drawable(box)]
    true = [box for box in boxes if box.score is None]
    found = sorted((box for box in boxes if box.score is not None), key=lambda box: box.score or 0.0)[-MOST_BOXES:]
    return Picture(
        base64.b64encode(data).decode("ascii"),
        picture.width,
        picture.height,
        picture.title,
        outlines=[outline(picture, box) for box in (*true[:MOST_BOXES], *found)],
        alt=describe_picture(picture, true, found),
        num_true=len(true),
        num_right=count_right(found, MIN_SCORE, len(true)),
        letter_height=round(find_letter_height(picture), 2),
    )


def find_letter_height(picture: QualityPicture) -> float:
    """Return how high words are in the picture's pixels, to be of one height in all pictures of the page."""
    return max(picture.width, SHAPE * picture.height) / LETTERS_A_WIDTH


def is_drawable(box: ShownBox) -> bool:
    """Say whether a box has a place in the picture and sides that are not turned round."""
    return box.left <= box.right and box.top <= box.bottom and box.right > 0 < box.bottom and box.left < 1 > box.top


def count_right(found: Sequence[ShownBox], min_score: float, most: int) -> int:
    """Return how many true boxes are found by boxes that are as sure as this: each right one finds another."""
    return min(most, sum(box.right_one is True and (box.score or 0.0) >= min_score for box in found))


def outline(picture: QualityPicture, box: ShownBox) -> Outline:
    """Return a box in the picture's pixels, kept inside it, with the words that stand beside it."""
    left, right = (min(1.0, max(0.0, edge)) * picture.width for edge in (box.left, box.right))
    top, bottom = (min(1.0, max(0.0, edge)) * picture.height for edge in (box.top, box.bottom))
    label = box.label if len(box.label) <= MOST_LETTERS else box.label[: MOST_LETTERS - 1] + "…"
    text, look, tag = box.label, "true", ""
    if box.score is None:
        text = f"{box.label}, true" + (", never found" if box.right_one is False else "")
        tag = label if box.right_one is False else ""
    else:
        look = "wrong" if box.right_one is False else "right"
        text = f"{box.label}, found with score {box.score:.2f}, {look}"
        tag = f"{'✗ ' if look == 'wrong' else ''}{label} {box.score:.2f}"
    letter = find_letter_height(picture)
    room = picture.width - 0.64 * letter * len(tag)
    inside = top + letter if top < 1.2 * letter else top - 0.25 * letter
    return Outline(
        left=round(left, 2),
        top=round(top, 2),
        width=round(right - left, 2),
        height=round(bottom - top, 2),
        text=text,
        look=look,
        score=box.score,
        tag=tag,
        tag_left=round(max(0.0, min(left, room)), 2),
        tag_base=round(inside if box.score is not None else max(letter, bottom - 0.3 * letter), 2),
    )


def describe_picture(picture: QualityPicture, true: Sequence[ShownBox], found: Sequence[ShownBox]) -> str:
    """Say in words what a reader sees: the surest boxes first."""
    sure = [box for box in reversed(found) if (box.score or 0.0) >= MIN_SCORE]
    told = [f"{box.label} {box.score:.2f} {'wrong' if box.right_one is False else 'right'}" for box in sure[:12]]
    missed = [box.label for box in true if box.right_one is False][:12]
    words = f"{picture.title}: {len(true)} true box{'' if len(true) == 1 else 'es'}"
    words += f"; found {', '.join(told)}" if told else "; nothing found"
    return words + (f"; never found {', '.join(missed)}" if missed else "") + "."
