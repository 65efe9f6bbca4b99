"""Colours as DALI changes them: against its formula in floating point."""

import math

import numpy as np
import pytest

from made_pictures import busy
from trainstone.config.schema import AugmentConfig
from trainstone.data.feeding.transform import PLAIN, Colours, change_colours, draw_colours, may_change

SSD = AugmentConfig(saturation=(0.5, 1.5), hue_degrees=(-0.5, 0.5), contrast=(0.5, 1.5), brightness=(0.875, 1.125))


def saturate(values: np.ndarray) -> np.ndarray:
    return np.rint(values).clip(0, 255)


def turn_hue(pixels: np.ndarray, saturation: float, degrees: float) -> np.ndarray:
    """Hsv, colour by colour: to YIQ, turned and stretched, and back."""
    red, green, blue = (pixels[..., channel].astype(np.float64) for channel in range(3))
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    i = 0.596 * red - 0.274 * green - 0.321 * blue
    q = 0.211 * red - 0.523 * green + 0.311 * blue
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    i, q = saturation * (cos * i + sin * q), saturation * (cos * q - sin * i)
    return saturate(np.stack([y + 0.956 * i + 0.621 * q, y - 0.272 * i - 0.647 * q, y - 1.107 * i + 1.705 * q], axis=2))


@pytest.mark.parametrize(
    "colours",
    [
        PLAIN,
        Colours(0.0, 0.0, 1.0, 1.0),
        Colours(1.5, -0.5, 1.0, 1.0),
        Colours(1.0, 90.0, 1.0, 1.0),
        Colours(1.0, 0.0, 0.5, 1.125),
        Colours(1.4, 0.3, 1.3, 0.9),
    ],
)
def test_pixels_are_dalis(colours: Colours):
    pixels = busy(97, 61)
    expected = pixels.astype(np.float64)
    if colours[:2] != PLAIN[:2]:
        expected = turn_hue(pixels, colours.saturation, colours.hue_degrees)
    expected = saturate(colours.brightness * (128 + colours.contrast * (expected - 128)))
    batch = np.zeros((2, 61, 97, 3), np.uint8)
    batch[1] = pixels
    change_colours(batch[1], colours)
    # OpenCV counts in fixed point: a level, which the contrast may stretch.
    assert np.abs(batch[1] - expected).max() <= math.ceil(max(1.0, colours.contrast * colours.brightness))
    assert (batch[1] == expected).mean() > 0.9
    assert not batch[0].any()
    assert (batch[1] == pixels).all() == (colours == PLAIN)


def test_draws_are_spread_over_their_ranges_and_hang_on_the_key():
    drawn = np.array([draw_colours(SSD, key) for key in range(3000)])
    for column, (low, high) in enumerate((SSD.saturation, SSD.hue_degrees, SSD.contrast, SSD.brightness)):
        assert low <= drawn[:, column].min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < drawn[:, column].max() <= high
        assert drawn[:, column].mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.08
    assert draw_colours(SSD, 7) == tuple(drawn[7])


def test_a_recipe_without_colours_draws_none():
    assert not may_change(AugmentConfig())
    assert all(may_change(AugmentConfig(**{name: (0.5, 0.9)})) for name in Colours._fields)
