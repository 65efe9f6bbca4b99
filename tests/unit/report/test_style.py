"""Colours: every text and mark has the contrast that WCAG 2.2 asks for, in both themes."""

import re

import pytest

from trainstone.report.page import read_template

STYLE = read_template("style.css")
THEMES = [
    dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r"\{([^{}]*--paper: #[^{}]*)\}", STYLE)
]
TEXT = ["--ink", "--muted", "--link", "--error", "--warning", "--info"]
MARKS = [f"--chart-{number}" for number in range(1, 7)]


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_the_standard_does():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_there_are_a_light_theme_and_the_same_dark_one_twice():
    light, by_system, by_button = THEMES
    assert by_system == by_button
    assert set(light) == set(by_system)
    assert luminance(light["--paper"]) > 0.9 > 0.1 > luminance(by_system["--paper"])


@pytest.mark.parametrize("theme", THEMES[:2], ids=["light", "dark"])
@pytest.mark.parametrize("behind", ["--paper", "--panel"])
def test_text_can_be_read(theme: dict[str, str], behind: str):
    too_weak = [name for name in TEXT if contrast(theme[name], theme[behind]) < 4.5]
    assert not too_weak


@pytest.mark.parametrize("theme", THEMES[:2], ids=["light", "dark"])
def test_marks_can_be_seen(theme: dict[str, str]):
    too_weak = [name for name in MARKS if contrast(theme[name], theme["--paper"]) < 3]
    assert not too_weak
