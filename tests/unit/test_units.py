from collections.abc import Callable

import pytest

from trainstone.units import (
    format_bytes,
    format_count,
    format_decimal,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_share,
)


@pytest.mark.parametrize(
    ("format_number", "expected"),
    [
        (
            format_seconds,
            {
                **{0: "0 µs", 8.3e-4: "830 µs", 9.999e-4: "1 ms", 0.0123: "12.3 ms", 0.9996: "1 s", 4.561: "4.56 s"},
                **{59.96: "1 min 00 s", 125: "2 min 05 s", 3660: "1 h 01 min", -2.5: "-2.5 s"},
            },
        ),
        (
            format_bytes,
            {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 2**30: "1 GiB", 1.5 * 2**40: "1.5 TiB"},
        ),
        (lambda value: format_decimal(value, "FLOP/s"), {3.21e11: "321 GFLOP/s", 999.9e9: "1 TFLOP/s"}),
        (format_rate, {4.8712: "4.87", 2751.4: "2,751"}),
        (format_percent, {0.0114: "1.1 %"}),
        (format_share, {0.713: "71 %", 1.5: "150 %", 0.0713: "7.1 %", 0.00129: "0.13 %"}),
        (
            format_ratio,
            {
                **{1.0: "1.000", 1.0834: "1.083", 0.95: "0.950", 0.1: "0.100", 0.01294: "0.0129", 0.0004: "0.000400"},
                **{1.234e-6: "0.00000123", 1.234e-7: "1.23e-07", 0.0: "0", 9.9994: "9.999", 9.9996: "10.00"},
                **{12.34: "12.3", 123.4: "123", 1234.5: "1,234", 123456.7: "123,457", 1.234e9: "1.23e+09"},
            },
        ),
        (lambda number: format_count(number, "run"), {0: "0 runs", 1: "1 run", 1200: "1,200 runs"}),
    ],
)
def test_format_functions_return_readable_numbers(format_number: Callable[[float], str], expected: dict[float, str]):
    assert {value: format_number(value) for value in expected} == expected
