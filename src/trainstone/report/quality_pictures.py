"""Pictures of an evaluation with what is in them and what was found, from a run folder's files to a gallery."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from trainstone.report.blocks import Gallery, Outline, Picture
from trainstone.results.quality import QualityPicture, ShownBox
from trainstone.units import format_count

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
        alt=tell_picture(picture, true, found),
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


def tell_picture(picture: QualityPicture, true: Sequence[ShownBox], found: Sequence[ShownBox]) -> str:
    """Say in words what a reader sees: the surest boxes first."""
    sure = [box for box in reversed(found) if (box.score or 0.0) >= MIN_SCORE]
    told = [f"{box.label} {box.score:.2f} {'wrong' if box.right_one is False else 'right'}" for box in sure[:12]]
    missed = [box.label for box in true if box.right_one is False][:12]
    words = f"{picture.title}: {len(true)} true box{'' if len(true) == 1 else 'es'}"
    words += f"; found {', '.join(told)}" if told else "; nothing found"
    return words + (f"; never found {', '.join(missed)}" if missed else "") + "."
