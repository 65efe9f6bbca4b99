"""From a stored image to the pixels of a batch: choose the part, decode what it needs, resize, mirror, colour.

Training draws part, mirroring and colours at random; validation takes the middle, or all. Pixels stay uint8; the device
normalises. Colours change as by DALI's Hsv and BrightnessContrast, each of which rounds and saturates to uint8.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from trainstone.config.schema import AugmentConfig, Config
from trainstone.data.image.decode import Pixels, Region, choose_shrink, resize_shorter
from trainstone.data.image.inspect import Look
from trainstone.data.pipeline.crops import Crop, CropWindow, crop_area, crop_boxes, crop_overlap, window_centre
from trainstone.data.pipeline.random_draws import Draws, make_key
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

# DALI's matrices: the second one is the inverse of the first, but for the third decimal. In YIQ a turn around Y changes
# the hue and a factor of I and Q the saturation.
TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
FROM_YIQ = np.array([[1, 0.956, 0.621], [1, -0.272, -0.647], [1, -1.107, 1.705]])
MIDDLE_GREY = 128
"""DALI's half range of uint8."""
STREAM = 1
"""Sets the draws for colours apart from those for the crop: other crops leave the colours as they are."""


class Colours(NamedTuple):
    saturation: float
    hue_degrees: float
    contrast: float
    brightness: float


PLAIN = Colours(1.0, 0.0, 1.0, 1.0)


def changes_colours(augment: AugmentConfig) -> bool:
    return any(getattr(augment, name) != (plain, plain) for name, plain in PLAIN._asdict().items())


def change_colours(out: Pixels, colours: Colours) -> None:
    """Change saturation and hue, then contrast and brightness, in place."""
    saturation, degrees, contrast, brightness = colours
    if (saturation, degrees) != PLAIN[:2]:
        angle = math.radians(degrees)
        along, across = saturation * math.cos(angle), saturation * math.sin(angle)
        turn = np.array([[1, 0, 0], [0, along, across], [0, -across, along]])
        cv2.transform(out, np.asarray(FROM_YIQ @ turn @ TO_YIQ, dtype=np.float32), dst=out)
    if (contrast, brightness) != PLAIN[2:]:
        levels = brightness * (MIDDLE_GREY + contrast * (np.arange(256) - MIDDLE_GREY))
        cv2.LUT(out, np.asarray(np.rint(levels).clip(0, 255), dtype=np.uint8), dst=out)


class ImageView(NamedTuple):
    part: Crop | CropWindow
    flip: bool
    shrink: int = 1
    """How many times smaller it is enough to decode a JPEG."""
    boxes: tuple[Box, ...] = ()
    """Those that count as shown; edges are shares of the whole image."""
    colours: Colours | None = None


class Transform:
    """How a recipe's images are shown, to train on or to validate with."""

    def __init__(self, config: Config, *, train: bool) -> None:
        augment, loader = config.augment, config.loader
        self.augment, self.size, self.train = augment, config.data.image_size, train
        self.shorter = self.size * 256 // 224 if augment.val_shorter == "auto" else augment.val_shorter
        if self.shorter < self.size:
            raise ConfigError(f"augment.val_shorter = {self.shorter} is below data.image_size = {self.size}")
        # Which images find room in a cache depends on chance: kept or not, they must look the same.
        plain = loader.cache == "pixels"
        self.fast = train and loader.decode == "fast" and not plain
        """Decode JPEGs by the quick cosine transform."""
        self.may_shrink = train and loader.shrink and not plain
        self.antialias = (augment.resize if train else augment.val_resize) == "antialias"
        self._colours = train and changes_colours(augment)

    def choose(self, seen: Look, boxes: tuple[Box, ...], key: int) -> ImageView:
        """Return the view of an image; `key` decides all that is random."""
        width, height = seen.width, seen.height
        augment = self.augment
        if not self.train:
            if augment.val_crop == "whole":
                return ImageView(Crop(0, 0, width, height), flip=False, boxes=boxes)
            return ImageView(window_centre(width, height, self.size, self.shorter), flip=False)
        draws = Draws(key)
        # Drawn first: a recipe that crops in another way mirrors the same images.
        flip = draws.uniform() < augment.flip
        colours = None
        if self._colours:
            stream = Draws(make_key(key, STREAM))
            colours = Colours(*(stream.between(*getattr(augment, name)) for name in Colours._fields))
        if augment.crop == "centre":
            return ImageView(window_centre(width, height, self.size, self.shorter), flip, colours=colours)
        kept: tuple[Box, ...] = ()
        if augment.crop == "overlap":
            part, kept = crop_overlap(width, height, boxes, draws, augment)
        elif augment.crop == "area":
            part = crop_area(width, height, draws, augment)
        elif augment.crop == "boxes":
            part = crop_boxes(width, height, boxes, draws, augment)
        else:
            part, kept = Crop(0, 0, width, height), boxes
        shrink = choose_shrink(part.width, part.height, self.size) if self.may_shrink else 1
        return ImageView(part, flip, shrink, kept, colours)

    def rows_needed(self, view: ImageView, seen: Look) -> int:
        """Return how many rows of the image, from its top, a view is made of."""
        if isinstance(view.part, Crop):
            return view.part.bottom
        if not self.antialias:
            return seen.height
        reach = max(1.0, (view.part.bottom - view.part.top) / self.size)
        return min(seen.height, math.ceil(view.part.bottom + reach) + 1)

    def write(self, region: Region, view: ImageView, out: Pixels) -> None:
        """Resize what a view shows into `out`, and mirror it."""
        if isinstance(view.part, Crop):
            left, top, right, bottom = scale_edges(view.part, region.shrink)
            part = region.pixels[top:bottom, left:right]
            if self.antialias:
                np.copyto(out, np.asarray(Image.fromarray(part).resize(out.shape[:2], Image.Resampling.BILINEAR)))
            else:
                cv2.resize(part, (self.size, self.size), dst=out, interpolation=cv2.INTER_LINEAR)
        elif self.antialias:
            image = Image.fromarray(region.pixels)
            np.copyto(out, np.asarray(image.resize(out.shape[:2], Image.Resampling.BILINEAR, box=view.part)))
        else:  # as it is defined: all of it scaled to the shorter side, then the middle cut out
            whole = resize_shorter(region.pixels, self.shorter)
            top, left = (whole.shape[0] - self.size) // 2, (whole.shape[1] - self.size) // 2
            np.copyto(out, whole[top : top + self.size, left : left + self.size])
        if view.flip:
            cv2.flip(out, 1, dst=out)
        if view.colours is not None:
            change_colours(out, view.colours)


def scale_edges(crop: Crop, shrink: int) -> list[int]:
    """Return left, top, right and bottom in an image that is so many times smaller."""
    edges = [crop.left, crop.top, crop.right, crop.bottom]
    return edges if shrink == 1 else [round(edge / shrink) for edge in edges]


def find_part(region: Region, view: ImageView) -> Crop | CropWindow:
    """Return what `write` really shows of an image: whole pixels of what was decoded, in those of the image."""
    if not isinstance(view.part, Crop) or region.shrink == 1:
        return view.part
    left, top, right, bottom = (edge * region.shrink for edge in scale_edges(view.part, region.shrink))
    # The last pixel of a smaller image may stand for some beyond the image's edge: that is its size all the same.
    return CropWindow(left, top, right, bottom)


DETAILS = {
    "area": ("area", "aspect"),
    "boxes": ("area", "aspect", "min_object_covered"),
    "overlap": ("sides", "aspect", "overlaps"),
}
"""Crop -> the keys of [augment] that decide it."""


def describe_transform(augment: AugmentConfig) -> str:
    """Return what is done in training, by the recipe's keys: crop area, area 0.08 to 1, aspect 0.75 to 1.333, ..."""
    colours = Colours._fields if changes_colours(augment) else ()
    message = []
    for name in ("crop", *DETAILS.get(augment.crop, ()), "resize", "flip", *colours):
        value = getattr(augment, name)
        message.append(f"{name} {' to '.join(f'{end:.4g}' for end in value) if isinstance(value, tuple) else value}")
    return ", ".join(message)
