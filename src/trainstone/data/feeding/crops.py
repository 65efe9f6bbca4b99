"""Which part of a picture is taken: the rules of the originals, as pure functions of size, boxes and random numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainstone.data.feeding.draws import Draws
from trainstone.data.sample import Box


class Crop(NamedTuple):
    """A rectangle in whole pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


class Window(NamedTuple):
    """A rectangle whose edges may lie within pixels."""

    left: float
    top: float
    right: float
    bottom: float


def crop_area(
    width: int,
    height: int,
    draws: Draws,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    log_aspect: bool,
    attempts: int,
) -> Crop:
    """Draw share of the area and aspect until a crop fits; else the largest in the middle whose aspect is allowed.

    torchvision's RandomResizedCrop; DALI's and MXNet's random crops are the same, MXNet's with even aspects.
    """
    for _ in range(attempts):
        pixels = width * height * draws.between(*area)
        ratio = draws.uniform()
        low, high = aspect
        ratio = low * (high / low) ** ratio if log_aspect else low + (high - low) * ratio
        crop_width, crop_height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = draws.below(height - crop_height + 1)
            left = draws.below(width - crop_width + 1)
            return Crop(left, top, crop_width, crop_height)
    return crop_middle(width, height, aspect)


def crop_middle(width: int, height: int, aspect: tuple[float, float]) -> Crop:
    """Return the largest rectangle in the middle whose aspect is allowed."""
    low, high = aspect
    crop_width, crop_height = width, height
    if width / height < low:
        crop_height = max(1, min(height, round(width / low)))
    elif width / height > high:
        crop_width = max(1, min(width, round(height * high)))
    return Crop((width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height)


def crop_boxes(
    width: int,
    height: int,
    boxes: Sequence[Box],
    draws: Draws,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    min_object_covered: float,
    attempts: int,
) -> Crop:
    """Draw crops until one holds enough of any box; the whole picture after so many attempts.

    TensorFlow's sample_distorted_bounding_box: an even aspect, then an even height among those whose area is allowed.
    Without a box the whole picture is one.
    """
    objects = [_edges(box, width, height) for box in boxes if all(map(math.isfinite, box[1:5]))]
    objects = objects or [Window(0, 0, width, height)]
    for _ in range(attempts):
        crop = _draw_by_height(width, height, draws, area, draws.between(*aspect))
        if crop is not None and _holds_any(crop, objects, min_object_covered):
            return crop
    return Crop(0, 0, width, height)


def _draw_by_height(width: int, height: int, draws: Draws, area: tuple[float, float], aspect: float) -> Crop | None:
    """Return a crop of this aspect somewhere in the picture; None where rounding leaves none of allowed area."""
    smallest, largest = area[0] * width * height, area[1] * width * height
    high = round(math.sqrt(largest / aspect))
    if round(high * aspect) > width:
        high = int((width + 0.5 - 1e-7) / aspect)
        if round(high * aspect) > width:
            high -= 1
    high = min(high, height)
    low = min(round(math.sqrt(smallest / aspect)), high)
    crop_height = low + draws.below(high - low + 1)
    crop_width = round(crop_height * aspect)
    if crop_width * crop_height < smallest:
        crop_height += 1
    elif crop_width * crop_height > largest:
        crop_height -= 1
    crop_width = round(crop_height * aspect)
    allowed = smallest <= crop_width * crop_height <= largest
    if not allowed or not (0 < crop_width <= width and 0 < crop_height <= height):
        return None
    # TensorFlow draws below width - crop_width: the last place is never taken.
    top = draws.below(height - crop_height) if crop_height < height else 0
    left = draws.below(width - crop_width) if crop_width < width else 0
    return Crop(left, top, crop_width, crop_height)


def _edges(box: Box, width: int, height: int) -> Window:
    """A box in pixels, rounded down as TensorFlow does."""
    return Window(int(box.left * width), int(box.top * height), int(box.right * width), int(box.bottom * height))


def _holds_any(crop: Crop, objects: Sequence[Window], share: float) -> bool:
    for one in objects:
        whole = (one.right - one.left) * (one.bottom - one.top)
        if whole < 1:
            continue
        across = min(crop.right, one.right) - max(crop.left, one.left)
        down = min(crop.bottom, one.bottom) - max(crop.top, one.top)
        if max(0, across) * max(0, down) >= share * whole:
            return True
    return False


def window_centre(width: int, height: int, size: int, shorter: int) -> Window:
    """Return what is seen of a picture scaled to a shorter side, its longer one rounded down, and cut in the middle."""
    if width < height:
        scaled_width, scaled_height = shorter, height * shorter // width
    else:
        scaled_width, scaled_height = width * shorter // height, shorter
    left, top = (scaled_width - size) // 2, (scaled_height - size) // 2
    across, down = width / scaled_width, height / scaled_height
    right, bottom = min(width, (left + size) * across), min(height, (top + size) * down)
    return Window(left * across, top * down, right, bottom)
