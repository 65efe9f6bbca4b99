import pytest

from trainstone.units import format_bytes, format_decimal, format_percent, format_rate, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (8.3e-4, "830 µs"),
        (9.999e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (4.561, "4.56 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3660, "1 h 01 min"),
        (-2.5, "-2.5 s"),
    ],
)
def test_seconds(seconds: float, text: str):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (512, "512 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (1.5 * 2**40, "1.5 TiB")],
)
def test_bytes(value: float, text: str):
    assert format_bytes(value) == text


def test_decimal_rate_percent():
    assert format_decimal(3.21e11, "FLOP/s") == "321 GFLOP/s"
    assert format_decimal(999.9e9, "FLOP/s") == "1 TFLOP/s"
    assert format_rate(4.8712) == "4.87"
    assert format_rate(2751.4) == "2,751"
    assert format_percent(0.0114) == "1.1 %"
