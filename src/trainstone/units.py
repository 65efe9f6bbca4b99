"""Format durations, bytes, rates and ratios for the terminal, the report and messages."""

import math
from collections.abc import Callable

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_seconds(seconds: float) -> str:
    """Return 830 µs, 12.3 ms, 4.56 s, 2 min 05 s or 1 h 01 min."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_bytes(num_bytes: float) -> str:
    """Return 512 B, 1.5 GiB ..."""
    value = float(num_bytes)
    for unit in _BINARY[:-1]:
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} {_BINARY[-1]}"


def format_decimal(value: float, unit: str) -> str:
    """Return 321 GFLOP/s for (3.21e11, "FLOP/s")."""
    for prefix in _DECIMAL[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} {_DECIMAL[-1]}{unit}"


def format_rate(images_per_second: float) -> str:
    """Return images/s with three significant digits and no exponent."""
    if images_per_second >= 100:
        return f"{images_per_second:,.0f}"
    return f"{images_per_second:.3g}"


def format_interval(ends: tuple[float, float], form: Callable[[float], str] = format_rate) -> str:
    """Return 1,177 … 1,203: both ends of an interval, by default in images/s."""
    return f"{form(ends[0])} … {form(ends[1])}"


def format_spread(middle: float, ends: tuple[float, float]) -> str:
    """Return ± 1.1 %: half of an interval as a share of its middle."""
    return f"± {format_percent((ends[1] - ends[0]) / 2 / middle)}"


def format_percent(share: float, digits: int = 1) -> str:
    """Return 12.3 % for 0.123."""
    return f"{share * 100:.{digits}f} %"


def format_share(share: float) -> str:
    """Return 71 %, 7.1 % or 0.13 %: always two significant digits."""
    return format_percent(share, count_decimals(100 * share, 2))


def format_ratio(ratio: float) -> str:
    """Return 1.083, 0.0129, 12.3 or 1,234: three to four digits, an exponent only beyond a million or a millionth."""
    if not 1e-6 <= ratio < 1e6:
        return f"{ratio:.3g}"
    if 0.1 <= ratio < 9.9995:
        return f"{ratio:.3f}"
    return f"{ratio:,.{count_decimals(ratio, 3)}f}"


def format_count(number: int, noun: str) -> str:
    """Return 1 run, 5 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_decimals(value: float, digits: int) -> int:
    """Return how many decimals show `digits` significant digits of a positive number."""
    return max(0, digits - 1 - math.floor(math.log10(value)))
