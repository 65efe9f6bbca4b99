"""From a stored picture to the pixels of a batch: choose the part, decode what it needs, resize, mirror.

Training draws part and mirroring at random; validation takes the middle. Pixels stay uint8; the device normalises.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from trainstone.config.schema import AugmentConfig, LoaderConfig
from trainstone.data.feeding.crops import Crop, Window, crop_area, crop_boxes, window_centre
from trainstone.data.feeding.draws import Draws
from trainstone.data.picture.decode import Pixels, resize_shorter
from trainstone.data.picture.look import Look
from trainstone.data.picture.region import Region, choose_shrink
from trainstone.data.sample import Box
from trainstone.errors import ConfigError


class View(NamedTuple):
    """What a batch shows of a picture."""

    part: Crop | Window
    flip: bool
    shrink: int = 1
    """How many times smaller it is enough to decode a JPEG."""


@dataclass(frozen=True)
class Transform:
    """How pictures become `size` x `size` pixels."""

    augment: AugmentConfig
    size: int
    shorter: int
    train: bool
    fast: bool
    """Decode JPEGs by the quick cosine transform."""
    may_shrink: bool

    @property
    def antialias(self) -> bool:
        """Whether all pixels under a new one count."""
        return (self.augment.resize if self.train else self.augment.val_resize) == "antialias"

    def choose(self, seen: Look, boxes: tuple[Box, ...], key: int) -> View:
        """Return the view of a picture; `key` decides all that is random."""
        width, height = seen.width, seen.height
        if not self.train:
            return View(window_centre(width, height, self.size, self.shorter), flip=False)
        draws, augment = Draws(key), self.augment
        # Drawn first: a recipe that crops in another way mirrors the same pictures.
        flip = draws.uniform() < augment.flip
        if augment.crop == "centre":
            return View(window_centre(width, height, self.size, self.shorter), flip)
        if augment.crop == "area":
            part = crop_area(
                width,
                height,
                draws,
                area=augment.area,
                aspect=augment.aspect,
                log_aspect=augment.aspect_law == "log",
                attempts=augment.attempts,
            )
        elif augment.crop == "boxes":
            part = crop_boxes(
                width,
                height,
                boxes,
                draws,
                area=augment.area,
                aspect=augment.aspect,
                min_object_covered=augment.min_object_covered,
                attempts=augment.attempts,
            )
        else:
            part = Crop(0, 0, width, height)
        return View(part, flip, choose_shrink(part.width, part.height, self.size) if self.may_shrink else 1)

    def rows_needed(self, view: View, seen: Look) -> int:
        """Return how many rows of the picture, from its top, a view is made of."""
        if isinstance(view.part, Crop):
            return view.part.bottom
        if not self.antialias:
            return seen.height
        reach = max(1.0, (view.part.bottom - view.part.top) / self.size)
        return min(seen.height, math.ceil(view.part.bottom + reach) + 1)

    def write(self, region: Region, view: View, out: Pixels) -> None:
        """Resize what a view shows into `out`, and mirror it."""
        if isinstance(view.part, Crop):
            part = cut(region, view.part)
            if self.antialias:
                np.copyto(out, np.asarray(Image.fromarray(part).resize(out.shape[:2], Image.Resampling.BILINEAR)))
            else:
                cv2.resize(part, (self.size, self.size), dst=out, interpolation=cv2.INTER_LINEAR)
        elif self.antialias:
            picture = Image.fromarray(region.pixels)
            np.copyto(out, np.asarray(picture.resize(out.shape[:2], Image.Resampling.BILINEAR, box=view.part)))
        else:
            self._write_middle(region.pixels, out)
        if view.flip:
            cv2.flip(out, 1, dst=out)

    def _write_middle(self, pixels: Pixels, out: Pixels) -> None:
        """Scale all of a picture to the shorter side, then cut out the middle: as it is defined."""
        whole = resize_shorter(pixels, self.shorter)
        top, left = (whole.shape[0] - self.size) // 2, (whole.shape[1] - self.size) // 2
        np.copyto(out, whole[top : top + self.size, left : left + self.size])


def make_transform(augment: AugmentConfig, loader: LoaderConfig, size: int, *, train: bool) -> Transform:
    """Return the transform that a recipe asks for."""
    shorter = size * 256 // 224 if augment.val_shorter == "auto" else augment.val_shorter
    if shorter < size:
        raise ConfigError(f"augment.val_shorter = {shorter} is below data.image_size = {size}")
    # Which pictures find room in a cache depends on chance: kept or not, they must look the same.
    plain = loader.cache == "pixels"
    return Transform(
        augment,
        size,
        shorter,
        train,
        fast=train and loader.decode == "fast" and not plain,
        may_shrink=train and loader.shrink and not plain,
    )


def cut(region: Region, crop: Crop) -> Pixels:
    """Return a part of a picture that was perhaps decoded smaller: edges go to the nearest pixel."""
    if region.shrink == 1:
        return region.pixels[crop.top : crop.bottom, crop.left : crop.right]
    left, top, right, bottom = (round(edge / region.shrink) for edge in (crop.left, crop.top, crop.right, crop.bottom))
    return region.pixels[top:bottom, left:right]


def describe_transform(transform: Transform) -> str:
    """Say in words what is done: random crop of 8 to 100 % of the area, aspect 0.75 to 1.33, bilinear, mirrored."""
    augment = transform.augment
    if not transform.train or augment.crop == "centre":
        told = [f"shorter side {transform.shorter}, the middle {transform.size} x {transform.size}"]
    elif augment.crop == "whole":
        told = ["the whole picture"]
    else:
        (low, high), (narrow, wide) = augment.area, augment.aspect
        told = [f"random crop of {low:.0%} to {high:.0%} of the area", f"aspect {narrow:.2f} to {wide:.2f}"]
        if augment.crop == "boxes":
            told.append(f"with {augment.min_object_covered:.0%} of an object")
    told.append("antialiased" if transform.antialias else "bilinear")
    if transform.train and augment.flip:
        told.append(f"mirrored {augment.flip:.0%}")
    return ", ".join(told).replace("%", " %")
