"""Random colours, as DALI's Hsv and BrightnessContrast change them, on pixels of a batch; OpenCV lets go of the GIL.

Each of the two steps rounds and saturates to uint8, as they do.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from trainstone.config.pictures import AugmentConfig
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.picture.decode import Pixels

# DALI's matrices: the second one is the inverse of the first, but for the third decimal. In YIQ a turn around Y changes
# the hue and a factor of I and Q the saturation.
TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
FROM_YIQ = np.array([[1, 0.956, 0.621], [1, -0.272, -0.647], [1, -1.107, 1.705]])
MIDDLE_GREY = 128
"""DALI's half range of uint8."""
STREAM = 1
"""Sets the draws for colours apart from those for the crop: other crops leave the colours as they are."""


class Colours(NamedTuple):
    """How a picture's colours are changed."""

    saturation: float
    hue_degrees: float
    contrast: float
    brightness: float


PLAIN = Colours(1.0, 0.0, 1.0, 1.0)


def may_change(augment: AugmentConfig) -> bool:
    """Say whether a recipe changes colours at all."""
    return any(getattr(augment, name) != (plain, plain) for name, plain in PLAIN._asdict().items())


def draw_colours(augment: AugmentConfig, key: int) -> Colours:
    """Draw saturation, hue, contrast and brightness, in this order."""
    draws = Draws(make_key(key, STREAM))
    return Colours(*(draws.between(*getattr(augment, name)) for name in Colours._fields))


def change_colours(out: Pixels, colours: Colours) -> None:
    """Change saturation and hue, then contrast and brightness, in place."""
    if (colours.saturation, colours.hue_degrees) != PLAIN[:2]:
        cv2.transform(out, make_matrix(colours.saturation, colours.hue_degrees), dst=out)
    if (colours.contrast, colours.brightness) != PLAIN[2:]:
        cv2.LUT(out, make_table(colours.contrast, colours.brightness), dst=out)


def make_matrix(saturation: float, hue_degrees: float) -> NDArray[np.float32]:
    """Return what red, green and blue are multiplied by."""
    angle = math.radians(hue_degrees)
    along, across = saturation * math.cos(angle), saturation * math.sin(angle)
    turn = np.array([[1, 0, 0], [0, along, across], [0, -across, along]])
    return np.asarray(FROM_YIQ @ turn @ TO_YIQ, dtype=np.float32)


def make_table(contrast: float, brightness: float) -> Pixels:
    """Return what each of the 256 levels becomes."""
    levels = brightness * (MIDDLE_GREY + contrast * (np.arange(256) - MIDDLE_GREY))
    return np.asarray(np.rint(levels).clip(0, 255), dtype=np.uint8)
