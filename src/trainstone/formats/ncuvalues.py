"""Numbers and units as ncu prints them: separated thousands, decimal commas of other locales, scaled units.

What a table of them looks like is in formats/ncu.py.
"""

import math
import re
from typing import Literal, NamedTuple

Mark = Literal[".", ","]
MARKS: tuple[Mark, Mark] = (".", ",")

# 1e30 is beyond any counter; larger numbers are damage, and their products would overflow.
MAX_VALUE = 1e30
_SHAPE = re.compile(r"([+-]?)([0-9][0-9.,]{0,60})([eE][+-]?[0-9]{1,3})?")
# Spaces and apostrophes separate thousands in some locales.
_GAP = re.compile("(?<=[0-9])[ \u00a0\u202f'\u2019](?=[0-9]{3})")
# `--print-metric-instances` adds each instance's value: 100 (50; 50)
_INSTANCES = re.compile(r"(?<=[0-9]) \([^()]*\)$")
# Groups of two are India's: 10,16,888.
_GROUPS = {
    mark: re.compile(f"[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{2,3}})*{re.escape(mark)}[0-9]{{3}}") for mark in ".,"
}
# Powers of ten; ncu's Kbyte is 1000 bytes.
_LARGE = {"K": 3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_SMALL = {"m": -3, "u": -6, "\u00b5": -6, "\u03bc": -6, "n": -9, "p": -12}
_SECONDS = ("second", "s")
_WORDS = (
    "byte",
    "cycle",
    "inst",
    "hz",
    "sector",
    "request",
    "warp",
    "thread",
    "block",
    "register",
    "wavefront",
    "flop",
)


class Metric(NamedTuple):
    """A number in its plain unit: cycle, byte, second, inst, %; empty where ncu gave none."""

    value: float
    unit: str


class Number(NamedTuple):
    """A number still as text, without its thousands' gaps."""

    sign: str
    digits: str
    exponent: str


def recognise_number(text: str) -> Number | None:
    """Return the number in a cell; None for other text and what was not measured (empty, n/a, (!) n/a, nan)."""
    found = _SHAPE.fullmatch(_INSTANCES.sub("", _GAP.sub("", text.strip())))
    if found is None:
        return None
    number = Number(found[1], found[2], found[3] or "")
    return number if any(_split(number, mark) for mark in MARKS) else None


def find_decimal_mark(number: Number) -> Mark | None:
    """Return the decimal mark that this number betrays; None where it could be read both ways: 1,016 and 117.344."""
    fits: list[Mark] = [mark for mark in MARKS if _split(number, mark)]
    return fits[0] if len(fits) == 1 else None


def convert_number(number: Number, mark: Mark) -> float | None:
    """Return the value with this decimal mark; None if it cannot be read so, or is too large to be measured."""
    parts = _split(number, mark)
    if parts is None:
        return None
    value = float(f"{number.sign}{parts[0]}.{parts[1]}{number.exponent}")
    return value if math.isfinite(value) and abs(value) <= MAX_VALUE else None


def scale_unit(unit: str) -> tuple[str, float]:
    """Return the plain unit and what to multiply by: Mcycle is 1e6 cycle, byte/usecond is 1e6 byte/second."""
    plain, power = [], 0
    for place, word in enumerate(unit.strip().split("/")[:3]):
        name, own_power = _scale_word(word.strip())
        plain.append(name)
        power += own_power if place == 0 else -own_power
    return "/".join(plain), 10.0**power


def _split(number: Number, mark: Mark) -> tuple[str, str] | None:
    """Integer and fraction digits if the text can be read with this decimal mark."""
    separator = "," if mark == "." else "."
    whole, _, fraction = number.digits.partition(mark)
    if not (fraction or "0").isdigit():
        return None
    if separator not in whole:
        return whole, fraction or "0"
    # 0,123 has no thousands to separate, nor has 1,234e5.
    if number.exponent or whole.startswith("0") or not _GROUPS[separator].fullmatch(whole):
        return None
    return whole.replace(separator, ""), fraction or "0"


def _scale_word(word: str) -> tuple[str, int]:
    if word in _SECONDS:
        return "second", 0
    if word[:1] in _SMALL and word[1:] in _SECONDS:
        return "second", _SMALL[word[0]]
    stem = word[1:].lower()
    if word[:1] in _LARGE and (stem in _WORDS or stem.removesuffix("s") in _WORDS):
        return stem, _LARGE[word[0]]
    return ("hz" if word.lower() == "hz" else word), 0
