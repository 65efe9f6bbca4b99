"""Outlines and surfaces of the objects in generated pictures: what a class is made of. Draws nothing."""

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float32]
Plane = npt.NDArray[np.floating]


def _arc(radius: float, start: float = 0.0, stop: float = 2 * np.pi, number: int = 64) -> Points:
    angle = np.linspace(start, stop, number, endpoint=stop - start < 2 * np.pi)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def _corners(number: int, inner: float = 1.0) -> Points:
    """Return a regular polygon; with every second corner at `inner`, a star."""
    angle = 2 * np.pi * np.arange(number) / number - np.pi / 2
    radius = np.where(np.arange(number) % 2 == 0, 1.0, inner)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def _cross() -> Points:
    arm, thick = 0.95, 0.32
    path = [(-thick, -arm), (thick, -arm), (thick, -thick), (arm, -thick), (arm, thick), (thick, thick)]
    return np.array([*path, *((-x, -y) for x, y in path)], np.float32)


def _crescent() -> Points:
    """Return a disc without another one of 0.85 its size, 0.5 aside: the arcs meet where both circles cross."""
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


def _arrow() -> Points:
    upper = [(0.98, 0.0), (0.1, -0.8), (0.1, -0.3), (-0.95, -0.3)]
    return np.array([*upper, *((x, -y) for x, y in reversed(upper[1:]))], np.float32)


# Contours around 0, within the unit circle; a second one cuts a hole.
SHAPES: dict[str, Callable[[], list[Points]]] = {
    "circle": lambda: [_arc(0.9)],
    "square": lambda: [_corners(4) @ np.array([[0.7071, 0.7071], [-0.7071, 0.7071]], np.float32)],
    "triangle": lambda: [_corners(3)],
    "star": lambda: [_corners(10, inner=0.42)],
    "ring": lambda: [_arc(0.95), _arc(0.52)],
    "cross": lambda: [_cross()],
    "crescent": lambda: [_crescent()],
    "hexagon": lambda: [_corners(6)],
    "heart": lambda: [_heart()],
    "arrow": lambda: [_arrow()],
}


@cache
def outline(shape: str) -> list[Points]:
    """Return a shape's contours."""
    return SHAPES[shape]()


def draw_blob(rng: np.random.Generator) -> list[Points]:
    """Return a lumpy outline, or a long stick: clutter that is none of the shapes."""
    if rng.random() < 0.35:
        thick = rng.uniform(0.08, 0.16)
        return [np.array([(-1, -thick), (1, -thick), (1, thick), (-1, thick)], np.float32)]
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    radius = np.full_like(angle, 0.62)
    for wave, most in ((2, 0.16), (3, 0.07), (4, 0.13), (5, 0.05)):
        radius += rng.uniform(most / 3, most) * np.sin(wave * angle + rng.uniform(0, 2 * np.pi))
    return [np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)]


def _step(wave: Plane, sharpness: float | Plane) -> Plane:
    """Make a wave of -1 to 1 into 0 and 1 with edges as soft as a pixel."""
    share: Plane = np.clip(0.5 + wave * sharpness, 0.0, 1.0)
    return share


def _sawtooth(x: Plane) -> Plane:
    """Return 0 to 1 and back to 0 again, once in every unit."""
    part = x - np.floor(x)
    wave: Plane = 1 - np.abs(2 * part - 1)
    return wave


def _bricks(u: Plane, v: Plane, sharpness: float) -> Plane:
    shifted = u * 0.55 + 0.5 * (np.floor(v) % 2)
    return _step(0.36 - np.minimum(2 * _sawtooth(shifted), _sawtooth(v)), 1.5 * sharpness)


def _speckle(u: Plane, v: Plane, sharpness: float) -> Plane:
    lumps = np.sin(4.1 * u + 2.2 * np.sin(2.9 * v)) * np.sin(3.7 * v + 2.4 * np.sin(3.3 * u + 1.0))
    return _step(lumps - 0.15, sharpness)


def _dots(u: Plane, v: Plane, sharpness: float) -> Plane:
    row = np.floor(v * 0.9)
    x, y = u * 0.9 + 0.5 * (row % 2), v * 0.9 - row
    return _step(0.32 - np.hypot(x - np.floor(x) - 0.5, y - 0.5), 2.2 * sharpness)


def _zigzag(u: Plane, v: Plane, sharpness: float) -> Plane:
    return _step(np.sin(2 * np.pi * (v + 0.55 * _sawtooth(u * 0.8))), sharpness)


def _rays(u: Plane, v: Plane, sharpness: float) -> Plane:
    reach = np.hypot(u, v) / 4
    return _step(np.sin(10 * np.arctan2(v, u)), sharpness * np.clip(reach * 4, 0.2, 2))


# How much of the second colour shows at a place; u and v count periods from the object's middle. A larger sharpness
# makes harder edges.
SURFACES: dict[str, Callable[[Plane, Plane, float], Plane]] = {
    "plain": lambda u, _v, _s: np.zeros_like(u),
    "striped": lambda u, _v, s: _step(np.sin(2 * np.pi * u), s),
    "dotted": _dots,
    "checked": lambda u, v, s: _step(np.sin(np.pi * u) * np.sin(np.pi * v), 1.6 * s),
    "ringed": lambda u, v, s: _step(np.sin(2 * np.pi * np.hypot(u, v)), s),
    "latticed": lambda u, v, s: _step(np.maximum(np.cos(2 * np.pi * u), np.cos(2 * np.pi * v)) - 0.82, 1.6 * s),
    "zigzag": _zigzag,
    "rayed": _rays,
    "bricked": _bricks,
    "speckled": _speckle,
}
