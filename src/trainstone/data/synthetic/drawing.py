"""Draw generated images: shapes, surfaces, backgrounds, shadows, and scenes of several objects.

A canvas is float32, 3 x height x width (NumPy is fast along long rows), 0 to 255; an object is drawn in its own patch.
"""

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import EllipsisType

import cv2
import numpy as np
import numpy.typing as npt

from trainstone.data.sample import Box, build_box

MAX_OBJECTS, FEW_OBJECTS = 8, 4
LEAST_VISIBLE = 0.4
SHIFT = 4  # fractional bits of cv2 drawing coordinates
Points = npt.NDArray[np.float32]
Plane = npt.NDArray[np.floating]
Canvas = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]
Colour = tuple[float, ...]
Light = tuple[float, float]
"""Unit vector towards the light."""


def _arc(radius: float, start: float = 0.0, stop: float = 2 * np.pi) -> Points:
    angle = np.linspace(start, stop, 64, endpoint=stop - start < 2 * np.pi)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def _corners(number: int, inner: float = 1.0) -> Points:
    """Return a regular polygon; with every second corner at `inner`, a star."""
    angle = 2 * np.pi * np.arange(number) / number - np.pi / 2
    radius = np.where(np.arange(number) % 2 == 0, 1.0, inner)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def _crescent() -> Points:
    """Return a disc minus a disc of 0.85 its radius, shifted by 0.5; the arcs meet where the circles intersect."""
    aside, small = 0.5, 0.85
    cut = (1 + aside**2 - small**2) / (2 * aside)
    outer, inner = np.arccos(cut), np.arctan2(np.sqrt(1 - cut**2), cut - aside)
    bow = _arc(small, inner, 2 * np.pi - inner) + np.array([aside, 0], np.float32)
    return np.concatenate([_arc(1.0, outer, 2 * np.pi - outer), bow[::-1]])


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    x = np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 16 - 0.12
    return np.stack([x, y], axis=1).astype(np.float32)


_CROSS = [(-0.32, -0.95), (0.32, -0.95), (0.32, -0.32), (0.95, -0.32), (0.95, 0.32), (0.32, 0.32)]
_ARROW = [(0.98, 0.0), (0.1, -0.8), (0.1, -0.3), (-0.95, -0.3), (-0.95, 0.3), (0.1, 0.3), (0.1, 0.8)]
# Contours around 0, inside the unit circle; a second contour cuts a hole.
SHAPES: dict[str, list[Points]] = {
    "circle": [_arc(0.9)],
    "square": [_corners(4) @ np.array([[0.7071, 0.7071], [-0.7071, 0.7071]], np.float32)],
    "triangle": [_corners(3)],
    "star": [_corners(10, inner=0.42)],
    "ring": [_arc(0.95), _arc(0.52)],
    "cross": [np.array([*_CROSS, *((-x, -y) for x, y in _CROSS)], np.float32)],
    "crescent": [_crescent()],
    "hexagon": [_corners(6)],
    "heart": [_heart()],
    "arrow": [np.array(_ARROW, np.float32)],
}


def draw_blob(rng: np.random.Generator) -> list[Points]:
    """Return clutter that is not one of the shapes: an irregular outline or a long stick."""
    if rng.random() < 0.35:
        thick = rng.uniform(0.08, 0.16)
        return [np.array([(-1, -thick), (1, -thick), (1, thick), (-1, thick)], np.float32)]
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    radius = np.full_like(angle, 0.62)
    for wave, most in ((2, 0.16), (3, 0.07), (4, 0.13), (5, 0.05)):
        radius += rng.uniform(most / 3, most) * np.sin(wave * angle + rng.uniform(0, 2 * np.pi))
    return [np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)]


def _step(wave: Plane, sharpness: float | Plane) -> Plane:
    """Map a wave from -1..1 to 0 and 1, with edges about one pixel wide."""
    share: Plane = np.clip(0.5 + wave * sharpness, 0.0, 1.0)
    return share


def _triangle_wave(x: Plane) -> Plane:
    """Return a triangle wave from 0 to 1 and back, with period 1."""
    part = x - np.floor(x)
    wave: Plane = 1 - np.abs(2 * part - 1)
    return wave


def _bricks(u: Plane, v: Plane, sharpness: float) -> Plane:
    shifted = u * 0.55 + 0.5 * (np.floor(v) % 2)
    return _step(0.36 - np.minimum(2 * _triangle_wave(shifted), _triangle_wave(v)), 1.5 * sharpness)


def _speckle(u: Plane, v: Plane, sharpness: float) -> Plane:
    lumps = np.sin(4.1 * u + 2.2 * np.sin(2.9 * v)) * np.sin(3.7 * v + 2.4 * np.sin(3.3 * u + 1.0))
    return _step(lumps - 0.15, sharpness)


def _dots(u: Plane, v: Plane, sharpness: float) -> Plane:
    row = np.floor(v * 0.9)
    x, y = u * 0.9 + 0.5 * (row % 2), v * 0.9 - row
    return _step(0.32 - np.hypot(x - np.floor(x) - 0.5, y - 0.5), 2.2 * sharpness)


# Share of the second colour at a point; u and v count periods from the object's centre. A larger sharpness gives
# harder edges.
SURFACES: dict[str, Callable[[Plane, Plane, float], Plane]] = {
    "plain": lambda u, _v, _s: np.zeros_like(u),
    "striped": lambda u, _v, s: _step(np.sin(2 * np.pi * u), s),
    "dotted": _dots,
    "checked": lambda u, v, s: _step(np.sin(np.pi * u) * np.sin(np.pi * v), 1.6 * s),
    "ringed": lambda u, v, s: _step(np.sin(2 * np.pi * np.hypot(u, v)), s),
    "latticed": lambda u, v, s: _step(np.maximum(np.cos(2 * np.pi * u), np.cos(2 * np.pi * v)) - 0.82, 1.6 * s),
    "zigzag": lambda u, v, s: _step(np.sin(2 * np.pi * (v + 0.55 * _triangle_wave(u * 0.8))), s),
    "rayed": lambda u, v, s: _step(np.sin(10 * np.arctan2(v, u)), s * np.clip(np.hypot(u, v), 0.2, 2)),
    "bricked": _bricks,
    "speckled": _speckle,
}


@dataclass(frozen=True)
class SceneObject:
    """An object to draw: contours in unit size, their position and transform, and its surface."""

    contours: list[Points]
    surface: str
    centre: tuple[float, float]
    matrix: npt.NDArray[np.float32]
    """2 x 2, from unit size to pixels."""
    colours: tuple[Colour, Colour]
    periods: float
    """Periods of the surface pattern from centre to edge."""
    turn: float
    """Angle between the pattern and the outline."""


@dataclass(frozen=True)
class ObjectPatch:
    """The patch that an object covers; `mask` is 0 to 255 and has the size of the patch."""

    left: int
    top: int
    mask: Mask

    @property
    def region(self) -> tuple[EllipsisType, slice, slice]:
        height, width = self.mask.shape
        return ..., slice(self.top, self.top + height), slice(self.left, self.left + width)


@cache
def _ramp(length: int) -> Plane:
    ramp = np.linspace(0, 1, length, dtype=np.float32)
    ramp.setflags(write=False)
    return ramp


def pick_colour(
    rng: np.random.Generator, saturation: tuple[float, float] = (0.25, 0.95), value: tuple[float, float] = (0.25, 1.0)
) -> Colour:
    hue, how_pure, how_bright = rng.random(3).tolist()
    pure = saturation[0] + (saturation[1] - saturation[0]) * how_pure
    bright = value[0] + (value[1] - value[0]) * how_bright
    return tuple(255 * part for part in colorsys.hsv_to_rgb(hue, pure, bright))


def pick_contrasting_colour(rng: np.random.Generator, other: Colour) -> Colour:
    """Return a colour that differs clearly from another one: the best of a few random ones."""
    best, chosen = -1.0, other
    for _ in range(6):
        colour = pick_colour(rng)
        distance = math.dist(colour, other)
        if distance > best:
            best, chosen = distance, colour
        if best > 110:
            break
    return chosen


def _spread(colour: Colour) -> Canvas:
    return np.array(colour, np.float32)[:, None, None]


def paint_background(rng: np.random.Generator, height: int, width: int) -> Canvas:
    """Return a noisy background: far and near ground that meet at a straight or hilly horizon."""
    down = _ramp(height)[:, None]
    hills = rng.standard_normal((1, int(rng.integers(3, 8))), dtype=np.float32) * float(rng.choice([0.0, 0.03, 0.07]))
    horizon = rng.uniform(0.25, 0.8) + rng.uniform(-0.2, 0.2) * (_ramp(width)[None] - 0.5)
    horizon = horizon + cv2.resize(hills, (width, 1), interpolation=cv2.INTER_CUBIC)
    # Noise of several octaves, about -1 to 1: the sum of enlarged coarse grids of random numbers.
    noise = np.zeros((height, width), np.float32)
    for cells in (3, 6, 12, 24):
        grid = rng.standard_normal((cells, cells), dtype=np.float32)
        noise += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * np.float32(3 / cells)
    noise *= np.float32(0.6)
    near = np.clip((down - horizon) * rng.uniform(10, 60) + 0.5 + 0.3 * noise, 0, 1)
    far_top, far_bottom = (_spread(pick_colour(rng, (0.05, 0.6), (0.45, 1.0))) for _ in range(2))
    near_top, near_bottom = (_spread(pick_colour(rng, (0.1, 0.7), (0.2, 0.8))) for _ in range(2))
    far = far_top + (far_bottom - far_top) * down  # 3 x height x 1
    canvas: Canvas = far + (near_top + (near_bottom - near_top) * down - far) * near
    rough = (rng.uniform(4, 12) + rng.uniform(6, 22) * near) * noise
    canvas += rough * (_spread(pick_colour(rng, (0.0, 0.5), (0.8, 1.0))) / 255)
    return canvas


def rasterise(item: SceneObject, height: int, width: int) -> ObjectPatch | None:
    """Rasterise an object's outline with soft edges; None if it is outside the image."""
    moved = [contour @ item.matrix.T + np.array(item.centre, np.float32) for contour in item.contours]
    low = np.floor(np.min([points.min(axis=0) for points in moved], axis=0)).astype(int) - 1
    high = np.ceil(np.max([points.max(axis=0) for points in moved], axis=0)).astype(int) + 2
    left, top = np.maximum(low, 0)
    right, bottom = np.minimum(high, (width, height))
    if right <= left or bottom <= top:
        return None
    mask = np.zeros((bottom - top, right - left), np.uint8)
    corner = np.array([left, top], np.float32)
    # In cv2 a pixel's centre, not its corner, has integer coordinates.
    paths = [np.rint((points - corner - 0.5) * 2**SHIFT).astype(np.int32) for points in moved]
    cv2.fillPoly(mask, paths, 255, cv2.LINE_AA, SHIFT)
    return ObjectPatch(int(left), int(top), mask)


def paint_object(canvas: Canvas, item: SceneObject, patch: ObjectPatch, light: Light) -> None:
    """Paint an object and its shadow on the canvas; it is brighter towards the light and darker at the rim."""
    cast_shadow(canvas, patch, light)
    height, width = patch.mask.shape
    x = np.arange(width, dtype=np.float32)[None] + (patch.left + 0.5 - item.centre[0])
    y = np.arange(height, dtype=np.float32)[:, None] + (patch.top + 0.5 - item.centre[1])
    (a, b), (c, d) = item.matrix.tolist()
    radius = math.sqrt(abs(a * d - b * c))
    depth = cv2.distanceTransform((patch.mask > 127).view(np.uint8), cv2.DIST_L2, 3)
    rim = np.minimum(depth * (1 / max(1.0, 0.16 * radius)), 1)
    reach = 0.24 / radius
    shade = 0.78 + 0.22 * rim - (reach * light[0] * x + reach * light[1] * y)
    first, second = map(_spread, item.colours)
    colour = first
    if item.surface != "plain":
        (a, b), (c, d) = (rotate(item.turn) @ np.linalg.inv(item.matrix) * item.periods).tolist()
        share = SURFACES[item.surface](a * x + b * y, c * x + d * y, min(3.0, radius / (6 * item.periods)))
        colour = first + (second - first) * share.astype(np.float32, copy=False)
    painted = colour * shade
    covered = canvas[patch.region]
    painted -= covered
    painted *= patch.mask * np.float32(1 / 255)
    covered += painted


def rotate(angle: float) -> npt.NDArray[np.float64]:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def cast_shadow(canvas: Canvas, patch: ObjectPatch, light: Light) -> None:
    """Darken the canvas away from the light, softly."""
    height, width = patch.mask.shape
    reach = max(2, min(height, width) // 10)
    soft = cv2.blur(
        cv2.copyMakeBorder(patch.mask, *(2 * reach,) * 4, cv2.BORDER_CONSTANT, value=0), (2 * reach + 1,) * 2
    )
    left = patch.left - 2 * reach + round(light[0] * reach)
    top = patch.top - 2 * reach + round(light[1] * reach)
    bottom, right = min(canvas.shape[1], top + soft.shape[0]), min(canvas.shape[2], left + soft.shape[1])
    part = soft[max(0, -top) : max(0, bottom - top), max(0, -left) : max(0, right - left)]
    canvas[:, max(0, top) : max(0, bottom), max(0, left) : max(0, right)] *= 1 - part * np.float32(0.5 / 255)


def apply_camera_effects(rng: np.random.Generator, canvas: Canvas) -> Mask:
    """Apply uneven light, tint, slight blur and noise; return uint8, height x width x 3."""
    _, height, width = canvas.shape
    across = rng.uniform(-0.35, 0.35) * (_ramp(width)[None] - 0.5)
    down = rng.uniform(-0.35, 0.35) * (_ramp(height)[:, None] - 0.5)
    lit = canvas * (1 + across + down)
    blur = rng.uniform(-0.5, 0.9) * min(height, width) / 160
    # The sum of four random bytes is nearly normal with standard deviation 148, and much faster.
    grain = rng.integers(0, 256, (4, height, width), np.uint8).sum(axis=0, dtype=np.uint16).astype(np.float32) - 510
    grain *= rng.uniform(1.0, 5.0) / 148
    bright = rng.uniform(0.8, 1.15)
    planes = []
    for plane in lit:
        sharp = plane if blur < 0.2 else cv2.GaussianBlur(plane, (0, 0), min(blur, 1.6))
        planes.append(np.clip(sharp * (bright * rng.uniform(0.94, 1.06)) + grain, 0, 255).astype(np.uint8))
    merged: Mask = np.asarray(cv2.merge(planes), np.uint8)
    return merged


def draw_single_object(
    rng: np.random.Generator, canvas: Canvas, light: Light, shape: str, surface: str, *, clutter: bool
) -> None:
    """Draw one object at a random position, partly hidden by clutter; without clutter, only the object, and large."""
    _, height, width = canvas.shape
    radius = 0.5 * rng.uniform(*((0.3, 0.8) if clutter else (0.6, 0.95))) * min(height, width)
    centre = tuple(rng.uniform(min(radius, size / 2), max(size - radius, size / 2)) for size in (width, height))
    paint_if_visible(canvas, build_object(rng, canvas, SHAPES[shape], surface, (centre[0], centre[1]), radius), light)
    if clutter and rng.random() < 0.5:
        angle = rng.uniform(0, 2 * math.pi)
        aside = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
        blob = build_object(rng, canvas, draw_blob(rng), "plain", aside, radius * rng.uniform(0.35, 0.6))
        paint_if_visible(canvas, blob, light)


def draw_clutter(rng: np.random.Generator, canvas: Canvas, light: Light, least: int, most: int) -> None:
    _, height, width = canvas.shape
    for _ in range(int(rng.integers(least, most))):
        radius = rng.uniform(0.06, 0.28) * min(height, width)
        centre = (rng.uniform(0, width), rng.uniform(0, height))
        paint_if_visible(canvas, build_object(rng, canvas, draw_blob(rng), "plain", centre, radius), light)


def paint_if_visible(canvas: Canvas, item: SceneObject, light: Light) -> None:
    patch = rasterise(item, *canvas.shape[1:])
    if patch is not None:
        paint_object(canvas, item, patch, light)


def build_object(
    rng: np.random.Generator,
    canvas: Canvas,
    contours: list[Points],
    surface: str,
    centre: tuple[float, float],
    radius: float,
) -> SceneObject:
    """Build an object with random rotation, squeeze and a colour that contrasts with its background."""
    turn, skew = rng.uniform(0, 2 * math.pi), rng.uniform(0, math.pi)
    squeeze = rotate(skew) @ np.diag([1.0, rng.uniform(0.72, 1.0)]) @ rotate(-skew)
    row = min(max(int(centre[1]), 0), canvas.shape[1] - 1)
    column = min(max(int(centre[0]), 0), canvas.shape[2] - 1)
    first = pick_contrasting_colour(rng, tuple(canvas[:, row, column].tolist()))
    return SceneObject(
        contours=contours,
        surface=surface,
        centre=centre,
        matrix=(radius * squeeze @ rotate(turn)).astype(np.float32),
        colours=(first, pick_contrasting_colour(rng, first)),
        periods=min(rng.uniform(1.8, 3.2), max(1.2, radius / 5)),
        turn=rng.uniform(0, math.pi),
    )


def draw_objects(
    rng: np.random.Generator,
    canvas: Canvas,
    light: Light,
    classes: tuple[tuple[str, str, str, str], ...],
    *,
    clutter: bool,
) -> tuple[Box, ...]:
    """Draw one to eight objects, small to large, over clutter; return the box of the visible part of each.

    Without clutter there are one to four objects, none of them small.
    """
    _, height, width = canvas.shape
    most, (least, largest) = (MAX_OBJECTS, (0.045, 0.36)) if clutter else (FEW_OBJECTS, (0.12, 0.36))
    owner = np.zeros((height, width), np.uint8)  # the object that a pixel shows, counted from 1
    labels: list[int] = []
    areas: list[int] = []
    for _ in range(int(rng.integers(1, most + 1))):
        label = int(rng.integers(len(classes)))
        radius = max(5.0, min(height, width) * least * (largest / least) ** rng.random())
        centre = tuple(
            rng.uniform(0.6 * min(radius, size / 2), size - 0.6 * min(radius, size / 2)) for size in (width, height)
        )
        surface = str(rng.choice(list(SURFACES)))
        item = build_object(rng, canvas, SHAPES[classes[label][2]], surface, (centre[0], centre[1]), radius)
        patch = rasterise(item, height, width)
        if patch is None or not leaves_others_visible(owner, patch, areas):
            continue
        paint_object(canvas, item, patch, light)
        owner[patch.region][patch.mask > 127] = len(labels) + 1
        labels.append(label)
        areas.append(int(np.count_nonzero(patch.mask > 127)))
    return tuple(find_visible_box(owner, number + 1, label) for number, label in enumerate(labels))


def leaves_others_visible(owner: Mask, patch: ObjectPatch, areas: list[int]) -> bool:
    """Return whether a new object is visible and leaves enough of each earlier object visible."""
    covers = patch.mask > 127
    if not covers.any():
        return False
    hidden = np.bincount(owner[patch.region][covers], minlength=len(areas) + 1)
    shown = {number: np.count_nonzero(owner == number) for number in np.flatnonzero(hidden).tolist() if number}
    return all(shown[number] - hidden[number] >= LEAST_VISIBLE * areas[number - 1] for number in shown)


def find_visible_box(owner: Mask, number: int, label: int) -> Box:
    visible = owner == number
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    height, width = owner.shape
    return build_box(label, (columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height))
