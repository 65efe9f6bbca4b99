"""Numbers as people read them: durations, bytes, rates, shares. Pure; used in terminal, report and messages alike."""

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


def format_percent(share: float, digits: int = 1) -> str:
    """Return 12.3 % for 0.123."""
    return f"{share * 100:.{digits}f} %"
