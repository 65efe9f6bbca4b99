"""Random and centre crops by the rules of the original codes, as pure functions of size, boxes and random numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainstone.config.schema import AugmentConfig
from trainstone.data.pipeline.random_draws import Draws
from trainstone.data.sample import Box

MAX_OPTIONS = 1000
"""crop = overlap: limit of drawn options before the whole image is used; the original's seven never reach it."""


class Crop(NamedTuple):
    """A rectangle of whole pixels."""

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


class CropWindow(NamedTuple):
    """A rectangle with fractional pixel edges."""

    left: float
    top: float
    right: float
    bottom: float


def crop_area(width: int, height: int, draws: Draws, augment: AugmentConfig) -> Crop:
    """Draw area and aspect ratio until a crop fits; otherwise return the largest centre crop with an allowed aspect.

    This is torchvision's RandomResizedCrop. DALI's and MXNet's random crops are the same, MXNet with uniform aspects.
    """
    low, high = augment.aspect
    for _ in range(augment.attempts):
        pixels = width * height * draws.between(*augment.area)
        ratio = draws.uniform()
        ratio = low * (high / low) ** ratio if augment.aspect_distribution == "log" else low + (high - low) * ratio
        crop_width, crop_height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = draws.below(height - crop_height + 1)
            left = draws.below(width - crop_width + 1)
            return Crop(left, top, crop_width, crop_height)
    # The largest centre crop with an allowed aspect ratio.
    crop_width, crop_height = width, height
    if width / height < low:
        crop_height = max(1, min(height, round(width / low)))
    elif width / height > high:
        crop_width = max(1, min(width, round(height * high)))
    return Crop((width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height)


def crop_boxes(width: int, height: int, boxes: Sequence[Box], draws: Draws, augment: AugmentConfig) -> Crop:
    """Draw crops until one covers enough of any box; return the whole image after `augment.attempts`.

    This is TensorFlow's sample_distorted_bounding_box: a uniform aspect ratio, then a uniform height among those with
    an allowed area. An image without boxes counts as one box.
    """
    objects = [
        # In pixels, rounded down as TensorFlow does.
        CropWindow(int(box.left * width), int(box.top * height), int(box.right * width), int(box.bottom * height))
        for box in boxes
        if all(map(math.isfinite, box[1:5]))
    ] or [CropWindow(0, 0, width, height)]
    areas = [(box, (box.right - box.left) * (box.bottom - box.top)) for box in objects]
    for _ in range(augment.attempts):
        crop = _draw_by_height(width, height, draws, augment.area, draws.between(*augment.aspect))
        if crop is not None and any(
            area >= 1 and _intersection(crop, box) >= augment.min_object_covered * area for box, area in areas
        ):
            return crop
    return Crop(0, 0, width, height)


def _draw_by_height(width: int, height: int, draws: Draws, area: tuple[float, float], aspect: float) -> Crop | None:
    """Return a random crop with this aspect ratio; None if rounding leaves none with an allowed area."""
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
    # TensorFlow draws below width - crop_width, so the last position is never used.
    top = draws.below(height - crop_height) if crop_height < height else 0
    left = draws.below(width - crop_width) if crop_width < width else 0
    return Crop(left, top, crop_width, crop_height)


def _intersection(one: Crop | CropWindow, other: CropWindow | Box) -> float:
    across = min(one.right, other.right) - max(one.left, other.left)
    down = min(one.bottom, other.bottom) - max(one.top, other.top)
    return max(0.0, across) * max(0.0, down)


def crop_overlap(
    width: int, height: int, boxes: Sequence[Box], draws: Draws, augment: AugmentConfig
) -> tuple[Crop, tuple[Box, ...]]:
    """Return SSD's random crop and the boxes with their centre in it (edges are shares of the whole image).

    The rule is that of DALI's RandomBBoxCrop. One of the minimum overlaps, or "the whole image", is drawn with equal
    probability. Every box must overlap the crop by at least that IoU; after too many failed attempts another option is
    drawn. A crop must contain a box, so an image without boxes is used whole.
    """
    overlaps = augment.overlaps
    for _ in range(MAX_OPTIONS if boxes else 0):
        option = draws.below(len(overlaps) + 1)
        if option == len(overlaps):
            break
        for _ in range(augment.attempts):
            across, down = draws.between(*augment.sides), draws.between(*augment.sides)
            if not augment.aspect[0] <= across / down <= augment.aspect[1]:
                continue
            left, top = draws.between(0, 1 - across), draws.between(0, 1 - down)
            part = CropWindow(left, top, left + across, top + down)
            if not all(_iou(part, box) >= overlaps[option] for box in boxes):
                continue
            kept = tuple(
                box
                for box in boxes
                if part.left <= (box.left + box.right) / 2 < part.right
                and part.top <= (box.top + box.bottom) / 2 < part.bottom
            )
            if kept:  # round edges to pixels; at least one pixel remains
                x, y = min(round(part.left * width), width - 1), min(round(part.top * height), height - 1)
                right, bottom = min(round(part.right * width), width), min(round(part.bottom * height), height)
                return Crop(x, y, max(1, right - x), max(1, bottom - y)), kept
    return Crop(0, 0, width, height), tuple(boxes)


def _iou(part: CropWindow, box: Box) -> float:
    shared = _intersection(part, box)
    total = (part.right - part.left) * (part.bottom - part.top) + (box.right - box.left) * (box.bottom - box.top)
    return shared / (total - shared)


def centre_crop_window(width: int, height: int, size: int, shorter: int) -> CropWindow:
    """Return the part of an image that remains after resizing its shorter side and a centre crop."""
    if width < height:
        scaled_width, scaled_height = shorter, height * shorter // width
    else:
        scaled_width, scaled_height = width * shorter // height, shorter
    left, top = (scaled_width - size) // 2, (scaled_height - size) // 2
    across, down = width / scaled_width, height / scaled_height
    right, bottom = min(width, (left + size) * across), min(height, (top + size) * down)
    return CropWindow(left * across, top * down, right, bottom)
