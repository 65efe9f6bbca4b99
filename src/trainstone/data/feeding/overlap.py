"""SSD's random crop, by the rule of DALI's RandomBBoxCrop: every box overlaps it by a drawn share. Pure functions."""

from collections.abc import Sequence

from trainstone.data.feeding.crops import Crop, Window
from trainstone.data.feeding.draws import Draws
from trainstone.data.sample import Box

MAX_OPTIONS = 1000
"""So many times an option is drawn before the picture stays whole: with the original's seven nobody comes that far."""


def crop_overlap(
    width: int,
    height: int,
    boxes: Sequence[Box],
    draws: Draws,
    *,
    sides: tuple[float, float],
    aspect: tuple[float, float],
    overlaps: Sequence[float],
    attempts: int,
) -> tuple[Crop, tuple[Box, ...]]:
    """Return a crop in whole pixels and the boxes whose centre lies in it (edges are still the whole picture's).

    One of the overlaps, or that the picture stays whole, is drawn, each as likely; after so many attempts that failed
    another one is. A crop without any box is no good: a picture that has none stays whole.
    """
    whole = Crop(0, 0, width, height), tuple(boxes)
    for _ in range(MAX_OPTIONS if boxes else 0):
        option = draws.below(len(overlaps) + 1)
        if option == len(overlaps):
            break
        for _ in range(attempts):
            part = _draw_part(draws, sides, aspect)
            if part is None or not all(overlap(part, box) >= overlaps[option] for box in boxes):
                continue
            kept = tuple(box for box in boxes if _holds_centre(part, box))
            if kept:
                return _to_pixels(part, width, height), kept
    return whole


def overlap(part: Window, box: Box) -> float:
    """Return intersection over union."""
    across = min(part.right, box.right) - max(part.left, box.left)
    down = min(part.bottom, box.bottom) - max(part.top, box.top)
    if across <= 0 or down <= 0:
        return 0.0
    shared = across * down
    both = (part.right - part.left) * (part.bottom - part.top) + (box.right - box.left) * (box.bottom - box.top)
    return shared / (both - shared)


def _draw_part(draws: Draws, sides: tuple[float, float], aspect: tuple[float, float]) -> Window | None:
    """Draw width, height and place as shares of the picture's; None where the aspect is not allowed."""
    width, height = draws.between(*sides), draws.between(*sides)
    if not aspect[0] <= width / height <= aspect[1]:
        return None
    left, top = draws.between(0, 1 - width), draws.between(0, 1 - height)
    return Window(left, top, left + width, top + height)


def _holds_centre(part: Window, box: Box) -> bool:
    across, down = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    return part.left <= across < part.right and part.top <= down < part.bottom


def _to_pixels(part: Window, width: int, height: int) -> Crop:
    """Move edges to the nearest pixel's; at least one pixel is left."""
    left, top = min(round(part.left * width), width - 1), min(round(part.top * height), height - 1)
    right, bottom = min(round(part.right * width), width), min(round(part.bottom * height), height)
    return Crop(left, top, max(1, right - left), max(1, bottom - top))
