"""Charts made of text characters: sparkline, histogram, bars."""

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*#@"
EIGHTHS = "▏▎▍▌▋▊▉█"
# A series that varies by less than this share of its median uses only part of the height, so that it looks quiet.
MIN_SPAN = 0.1
Array = NDArray[np.float64]


def draw_sparkline(
    values: ArrayLike, width: int, steady_from: int = 0, *, encoding: str | None = "utf-8"
) -> tuple[str, str]:
    """Return the bars of the values before and after `steady_from`, at most `width` in total.

    A bar is the mean of neighbouring values, or a space if none is finite. Heights cover the usual range of the
    steady part and are clipped outside it, so that one slow first step does not flatten all others.
    """
    series = np.asarray(values, dtype=np.float64)
    series = np.where(np.isfinite(series), series, np.nan)
    cut = min(max(0, steady_from), series.size)
    num_cells = min(max(0, width), series.size)
    num_before = num_cells if cut == series.size else 0
    if 0 < cut < series.size and num_cells >= 2:  # proportional to the values; at least one cell per part
        num_before = min(max(1, round(num_cells * cut / series.size)), num_cells - 1)
    cells = np.concatenate((_average(series[:cut], num_before), _average(series[cut:], num_cells - num_before)))
    low, span = _find_scale(series[cut:] if np.isfinite(series[cut:]).any() else series)
    bars = _choose_encodable(BLOCKS, ASCII, encoding)
    drawn = "".join(_draw_bar(float(cell), low, span, bars) for cell in cells)
    return drawn[:num_before], drawn[num_before:]


def draw_histogram(counts: ArrayLike, width: int, *, encoding: str | None = "utf-8") -> str:
    """Return at most `width` bars from 0 to the highest count; a bar is the maximum of neighbouring counts."""
    series = np.asarray(counts, dtype=np.float64)
    pieces = np.array_split(series, min(max(1, width), series.size)) if series.size else []
    bars, top = _choose_encodable(BLOCKS, ASCII, encoding), float(series.max(initial=0))
    return "".join(_draw_bar(float(piece.max()), 0.0, top, bars) for piece in pieces)


def draw_bars(values: ArrayLike, width: int, *, encoding: str | None = "utf-8") -> list[str]:
    """Return a horizontal bar per value; the highest is `width` long, and values above 0 are always visible."""
    series = np.asarray(values, dtype=np.float64)
    series = np.where(np.isfinite(series) & (series > 0), series, 0.0)
    top = float(series.max(initial=0))
    pieces = _choose_encodable(EIGHTHS, "#", encoding)
    drawn = []
    for value in series:
        length = max(1, round(float(value / top) * max(0, width) * len(pieces))) if value and width > 0 else 0
        whole, rest = divmod(length, len(pieces))
        drawn.append(pieces[-1] * whole + (pieces[rest - 1] if rest else ""))
    return drawn


def _average(values: Array, num_cells: int) -> Array:
    edges = np.linspace(0, values.size, num_cells + 1).round().astype(np.int64)
    pieces = [values[begin:end] for begin, end in itertools.pairwise(edges)]
    finite = [piece[np.isfinite(piece)] for piece in pieces]
    return np.array([piece.mean() if piece.size else np.nan for piece in finite], dtype=np.float64)


def _find_scale(values: Array) -> tuple[float, float]:
    """Return the value of the lowest bar and the value range: percentiles 1 to 99 within Tukey's outer fences."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 0.0
    q1, median, q3 = (float(q) for q in np.quantile(finite, [0.25, 0.5, 0.75]))
    fence = 3 * (q3 - q1)
    low, high = np.quantile(finite[(finite >= q1 - fence) & (finite <= q3 + fence)], [0.01, 0.99])
    return float(low), max(float(high - low), MIN_SPAN * abs(median))


def _choose_encodable(text: str, plain: str, encoding: str | None) -> str:
    """Return the text, or the plain text if the encoding cannot represent it."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return plain
    return text


def _draw_bar(value: float, low: float, span: float, bars: str) -> str:
    if not np.isfinite(value):
        return " "
    height = min(max(0.0, (value - low) / span), 1.0) if span > 0 else 0.0
    return bars[min(int(height * len(bars)), len(bars) - 1)]
