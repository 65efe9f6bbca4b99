"""Draws generated pictures: a background, objects with surface, light and shadow, a camera. Knows no classes.

A canvas is float32, 3 x height x width (numpy works along long rows), 0 to 255; an object is drawn in its own patch.
"""

import colorsys
import math
from dataclasses import dataclass
from functools import cache
from types import EllipsisType

import cv2
import numpy as np
import numpy.typing as npt

from trainstone.data.generated.shapes import SURFACES, Plane, Points

Canvas = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]
Colour = tuple[float, ...]
SHIFT = 4  # cv2 draws with so many binary digits behind the point


@dataclass(frozen=True)
class Thing:
    """An object to draw: contours in unit size, and how they come to stand in the picture."""

    contours: list[Points]
    surface: str
    centre: tuple[float, float]
    matrix: npt.NDArray[np.float32]
    """2 x 2, from unit size to pixels."""
    colours: tuple[Colour, Colour]
    periods: float
    """Of the surface's pattern, from the middle to the edge."""
    turn: float
    """Angle of the pattern against the outline."""


@dataclass(frozen=True)
class Drawn:
    """The patch that a thing covers; `mask` is 0 to 255, as large as the patch."""

    left: int
    top: int
    mask: Mask

    @property
    def place(self) -> tuple[EllipsisType, slice, slice]:
        """The patch in the picture."""
        height, width = self.mask.shape
        return ..., slice(self.top, self.top + height), slice(self.left, self.left + width)


@cache
def _ramp(length: int) -> Plane:
    """Return 0 to 1 along a side."""
    ramp = np.linspace(0, 1, length, dtype=np.float32)
    ramp.setflags(write=False)
    return ramp


def pick_colour(
    rng: np.random.Generator, saturation: tuple[float, float] = (0.25, 0.95), value: tuple[float, float] = (0.25, 1.0)
) -> Colour:
    """Return a colour of any hue."""
    hue, how_pure, how_bright = rng.random(3).tolist()
    pure = saturation[0] + (saturation[1] - saturation[0]) * how_pure
    bright = value[0] + (value[1] - value[0]) * how_bright
    return tuple(255 * part for part in colorsys.hsv_to_rgb(hue, pure, bright))


def pick_unlike(rng: np.random.Generator, other: Colour) -> Colour:
    """Return a colour that can be told from another, as far as a few tries find one."""
    best, found = -1.0, other
    for _ in range(6):
        colour = pick_colour(rng)
        apart = math.dist(colour, other)
        if apart > best:
            best, found = apart, colour
        if best > 110:
            break
    return found


def _spread(colour: Colour) -> Canvas:
    """Make a colour fit a canvas."""
    return np.array(colour, np.float32)[:, None, None]


def cloud(rng: np.random.Generator, height: int, width: int, cells: tuple[int, ...]) -> Plane:
    """Return noise of several octaves, about -1 to 1: coarse grids of random numbers, smoothly enlarged and added."""
    total = np.zeros((height, width), np.float32)
    for number in cells:
        grid = rng.standard_normal((number, number), dtype=np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * np.float32(cells[0] / number)
    return total * np.float32(0.6)


def paint_background(rng: np.random.Generator, height: int, width: int) -> Canvas:
    """Return a far and a near ground that meet in a hilly or straight horizon, both uneven."""
    down = _ramp(height)[:, None]
    hills = rng.standard_normal((1, int(rng.integers(3, 8))), dtype=np.float32) * float(rng.choice([0.0, 0.03, 0.07]))
    horizon = rng.uniform(0.25, 0.8) + rng.uniform(-0.2, 0.2) * (_ramp(width)[None] - 0.5)
    horizon = horizon + cv2.resize(hills, (width, 1), interpolation=cv2.INTER_CUBIC)
    noise = cloud(rng, height, width, (3, 6, 12, 24))
    near = np.clip((down - horizon) * rng.uniform(10, 60) + 0.5 + 0.3 * noise, 0, 1)
    far_top, far_bottom = (_spread(pick_colour(rng, (0.05, 0.6), (0.45, 1.0))) for _ in range(2))
    near_top, near_bottom = (_spread(pick_colour(rng, (0.1, 0.7), (0.2, 0.8))) for _ in range(2))
    far = far_top + (far_bottom - far_top) * down  # 3 x height x 1
    canvas: Canvas = far + (near_top + (near_bottom - near_top) * down - far) * near
    rough = (rng.uniform(4, 12) + rng.uniform(6, 22) * near) * noise
    canvas += rough * (_spread(pick_colour(rng, (0.0, 0.5), (0.8, 1.0))) / 255)
    return canvas


def place_thing(thing: Thing, height: int, width: int) -> Drawn | None:
    """Draw a thing's outline, with soft edges; None if none of it is in the picture."""
    moved = [contour @ thing.matrix.T + np.array(thing.centre, np.float32) for contour in thing.contours]
    low = np.floor(np.min([points.min(axis=0) for points in moved], axis=0)).astype(int) - 1
    high = np.ceil(np.max([points.max(axis=0) for points in moved], axis=0)).astype(int) + 2
    left, top = np.maximum(low, 0)
    right, bottom = np.minimum(high, (width, height))
    if right <= left or bottom <= top:
        return None
    mask = np.zeros((bottom - top, right - left), np.uint8)
    corner = np.array([left, top], np.float32)
    # A pixel's middle, not its corner, has whole coordinates for cv2.
    paths = [np.rint((points - corner - 0.5) * 2**SHIFT).astype(np.int32) for points in moved]
    cv2.fillPoly(mask, paths, 255, cv2.LINE_AA, SHIFT)
    return Drawn(int(left), int(top), mask)


def paint_thing(canvas: Canvas, thing: Thing, drawn: Drawn, light: tuple[float, float]) -> None:
    """Lay a thing over the canvas: its shadow, then its surface, brighter towards the light and darker at the rim."""
    cast_shadow(canvas, drawn, light)
    height, width = drawn.mask.shape
    x = np.arange(width, dtype=np.float32)[None] + (drawn.left + 0.5 - thing.centre[0])
    y = np.arange(height, dtype=np.float32)[:, None] + (drawn.top + 0.5 - thing.centre[1])
    (a, b), (c, d) = thing.matrix.tolist()
    radius = math.sqrt(abs(a * d - b * c))
    depth = cv2.distanceTransform((drawn.mask > 127).view(np.uint8), cv2.DIST_L2, 3)
    rim = np.minimum(depth * (1 / max(1.0, 0.16 * radius)), 1)
    reach = 0.24 / radius
    shade = 0.78 + 0.22 * rim - (reach * light[0] * x + reach * light[1] * y)
    painted = paint_surface(thing, x, y, radius) * shade
    patch = canvas[drawn.place]
    painted -= patch
    painted *= drawn.mask * np.float32(1 / 255)
    patch += painted


def paint_surface(thing: Thing, x: Plane, y: Plane, radius: float) -> Canvas:
    """Return a thing's colours at places given in pixels from its middle."""
    first, second = map(_spread, thing.colours)
    if thing.surface == "plain":
        return first
    back = rotate(thing.turn) @ np.linalg.inv(thing.matrix) * thing.periods
    (a, b), (c, d) = back.tolist()
    share = SURFACES[thing.surface](a * x + b * y, c * x + d * y, min(3.0, radius / (6 * thing.periods)))
    return first + (second - first) * share.astype(np.float32, copy=False)


def rotate(angle: float) -> npt.NDArray[np.float64]:
    """Return the matrix that turns by an angle."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def cast_shadow(canvas: Canvas, drawn: Drawn, light: tuple[float, float]) -> None:
    """Darken the canvas away from the light, softly."""
    height, width = drawn.mask.shape
    reach = max(2, min(height, width) // 10)
    soft = cv2.blur(
        cv2.copyMakeBorder(drawn.mask, *(2 * reach,) * 4, cv2.BORDER_CONSTANT, value=0), (2 * reach + 1,) * 2
    )
    left = drawn.left - 2 * reach + round(light[0] * reach)
    top = drawn.top - 2 * reach + round(light[1] * reach)
    bottom, right = min(canvas.shape[1], top + soft.shape[0]), min(canvas.shape[2], left + soft.shape[1])
    part = soft[max(0, -top) : max(0, bottom - top), max(0, -left) : max(0, right - left)]
    canvas[:, max(0, top) : max(0, bottom), max(0, left) : max(0, right)] *= 1 - part * np.float32(0.5 / 255)


def photograph(rng: np.random.Generator, canvas: Canvas) -> Mask:
    """Light unevenly, tint, blur a little, add noise: what a camera does. Returns height x width x 3."""
    _, height, width = canvas.shape
    across = rng.uniform(-0.35, 0.35) * (_ramp(width)[None] - 0.5)
    down = rng.uniform(-0.35, 0.35) * (_ramp(height)[:, None] - 0.5)
    seen = canvas * (1 + across + down)
    blur = rng.uniform(-0.5, 0.9) * min(height, width) / 160
    # The sum of four bytes is near enough to a normal number of deviation 148, and much faster.
    grain = rng.integers(0, 256, (4, height, width), np.uint8).sum(axis=0, dtype=np.uint16).astype(np.float32) - 510
    grain *= rng.uniform(1.0, 5.0) / 148
    bright = rng.uniform(0.8, 1.15)
    planes = []
    for plane in seen:
        sharp = plane if blur < 0.2 else cv2.GaussianBlur(plane, (0, 0), min(blur, 1.6))
        planes.append(np.clip(sharp * (bright * rng.uniform(0.94, 1.06)) + grain, 0, 255).astype(np.uint8))
    merged: Mask = np.asarray(cv2.merge(planes), np.uint8)
    return merged
