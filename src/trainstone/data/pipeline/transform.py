"""Image transforms: crop, resize, horizontal flip and colour jitter, from a stored image to the pixels of a batch.

Training draws crop, flip and colours at random; validation uses a centre crop or the whole image. Pixels stay uint8;
the device normalises them. Colours change as in DALI's Hsv and BrightnessContrast, which round and saturate to uint8.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from trainstone.config.schema import AugmentConfig, Config
from trainstone.data.image.decode import Pixels, Region, choose_shrink, resize_shorter
from trainstone.data.image.inspect import ImageHeader
from trainstone.data.pipeline.crops import Crop, CropWindow, centre_crop_window, crop_area, crop_boxes, crop_overlap
from trainstone.data.pipeline.random_draws import Draws, derive_key
from trainstone.data.sample import Box
from trainstone.errors import ConfigError

# DALI's matrices; the second is the inverse of the first to the third decimal. In YIQ, rotating around Y changes the
# hue and scaling I and Q the saturation.
TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
FROM_YIQ = np.array([[1, 0.956, 0.621], [1, -0.272, -0.647], [1, -1.107, 1.705]])
MIDDLE_GREY = 128
"""DALI's half range of uint8."""
STREAM = 1
"""Separates the random stream of colours from that of the crop: changing the crop does not change the colours."""


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
    """A view of an image: its crop, flip and colours."""

    part: Crop | CropWindow
    flip: bool
    shrink: int = 1
    """Factor by which a JPEG may be shrunk while it is decoded."""
    boxes: tuple[Box, ...] = ()
    """Boxes in the view; edges are shares of the whole image."""
    colours: Colours | None = None


class Transform:
    """A recipe's transform for training or validation images."""

    def __init__(self, config: Config, *, train: bool) -> None:
        augment, loader = config.augment, config.loader
        self.augment, self.size, self.train = augment, config.data.image_size, train
        self.shorter = self.size * 256 // 224 if augment.val_shorter == "auto" else augment.val_shorter
        if self.shorter < self.size:
            raise ConfigError(f"augment.val_shorter = {self.shorter} is below data.image_size = {self.size}")
        # Which images fit the cache varies between runs: cached or not, they must give the same pixels.
        plain = loader.cache == "pixels"
        self.fast = train and loader.decode == "fast" and not plain
        """Decode JPEGs with the fast inverse DCT."""
        self.may_shrink = train and loader.shrink and not plain
        self.antialias = (augment.resize if train else augment.val_resize) == "antialias"
        self._colours = train and changes_colours(augment)

    def choose_view(self, header: ImageHeader, boxes: tuple[Box, ...], key: int) -> ImageView:
        """Return the view of an image; `key` determines all random choices."""
        width, height = header.width, header.height
        augment = self.augment
        if not self.train:
            if augment.val_crop == "whole":
                return ImageView(Crop(0, 0, width, height), flip=False, boxes=boxes)
            return ImageView(centre_crop_window(width, height, self.size, self.shorter), flip=False)
        draws = Draws(key)
        # Drawn first, so a recipe with another crop flips the same images.
        flip = draws.uniform() < augment.flip
        colours = None
        if self._colours:
            stream = Draws(derive_key(key, STREAM))
            colours = Colours(*(stream.between(*getattr(augment, name)) for name in Colours._fields))
        if augment.crop == "centre":
            return ImageView(centre_crop_window(width, height, self.size, self.shorter), flip, colours=colours)
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

    def rows_needed(self, view: ImageView, header: ImageHeader) -> int:
        """Return how many rows from the top of the image a view needs."""
        if isinstance(view.part, Crop):
            return view.part.bottom
        if not self.antialias:
            return header.height
        reach = max(1.0, (view.part.bottom - view.part.top) / self.size)
        return min(header.height, math.ceil(view.part.bottom + reach) + 1)

    def write(self, region: Region, view: ImageView, out: Pixels) -> None:
        """Crop, resize, flip and colour an image into `out`."""
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
        else:  # by definition: resize the whole image to the shorter side, then centre crop
            whole = resize_shorter(region.pixels, self.shorter)
            top, left = (whole.shape[0] - self.size) // 2, (whole.shape[1] - self.size) // 2
            np.copyto(out, whole[top : top + self.size, left : left + self.size])
        if view.flip:
            cv2.flip(out, 1, dst=out)
        if view.colours is not None:
            change_colours(out, view.colours)


def scale_edges(crop: Crop, shrink: int) -> list[int]:
    """Return left, top, right and bottom in an image shrunk by this factor."""
    edges = [crop.left, crop.top, crop.right, crop.bottom]
    return edges if shrink == 1 else [round(edge / shrink) for edge in edges]


def find_shown_part(region: Region, view: ImageView) -> Crop | CropWindow:
    """Return the part that `write` shows: whole pixels of the decoded image, in coordinates of the stored one."""
    if not isinstance(view.part, Crop) or region.shrink == 1:
        return view.part
    left, top, right, bottom = (edge * region.shrink for edge in scale_edges(view.part, region.shrink))
    # The last pixel of a shrunk image may extend beyond the stored image's edge.
    return CropWindow(left, top, right, bottom)


CROP_KEYS = {
    "area": ("area", "aspect"),
    "boxes": ("area", "aspect", "min_object_covered"),
    "overlap": ("sides", "aspect", "overlaps"),
}
"""Crop -> the keys of [augment] that it uses."""


def describe_transform(augment: AugmentConfig) -> str:
    """Return the training transform as text, by recipe keys: crop area, area 0.08 to 1, aspect 0.75 to 1.333, ..."""
    colours = Colours._fields if changes_colours(augment) else ()
    parts = []
    for name in ("crop", *CROP_KEYS.get(augment.crop, ()), "resize", "flip", *colours):
        value = getattr(augment, name)
        parts.append(f"{name} {' to '.join(f'{end:.4g}' for end in value) if isinstance(value, tuple) else value}")
    return ", ".join(parts)
