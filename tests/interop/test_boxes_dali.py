"""Our crops around boxes and our colours are those of DALI's own RandomBBoxCrop, Hsv and BrightnessContrast."""

import numpy as np
import pytest
from scipy import stats

from made_pictures import busy
from peers import ask_peer
from trainstone.config.schema import AugmentConfig
from trainstone.data.feeding.crops import crop_overlap
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.feeding.transform import Colours, change_colours
from trainstone.data.sample import Box

DRAWS = 5_000
SIDE = 20_000
"""Of a picture so large that whole pixels tell shares."""
# One attempt, as the original had. With more, today's DALI goes on after a crop that is good and may lose it again to a
# later one without a box; the DALI of the original's time took the first good one, and so do we.
ATTEMPTS = 1
OVERLAPS = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]
CASES = {
    "one large box": [Box(0, 0.1, 0.05, 0.9, 0.95)],
    "one small box": [Box(0, 0.7, 0.6, 0.8, 0.75)],
    "tall": [Box(0, 0.2, 0.3, 0.5, 0.9)],
    "two boxes": [Box(0, 0.05, 0.1, 0.45, 0.6), Box(1, 0.4, 0.3, 0.95, 0.9)],
    "far apart": [Box(0, 0.0, 0.0, 0.2, 0.1), Box(1, 0.8, 0.9, 1.0, 1.0), Box(1, 0.4, 0.4, 0.5, 0.5)],
}
COLOURS = [
    Colours(*row)
    for row in ([0.5, 0.5, 1, 1], [1.5, -0.5, 1, 1], [1, 30, 1, 1], [1.2, 0.1, 0.5, 1.125], [0.7, 0.4, 1.5, 0.875])
]


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    jobs = {
        name: ("box_crops", {
            "boxes": [box[1:5] for box in boxes], "overlaps": OVERLAPS, "attempts": ATTEMPTS, "count": DRAWS, "seed": 7,
        })
        for name, boxes in CASES.items()
    }  # fmt: skip
    return {name: np.array(crops) for name, crops in ask_peer("dali", **jobs).items()}


@pytest.mark.parametrize("name", CASES)
def test_crops_have_dalis_distribution(name: str, theirs: dict[str, np.ndarray]):
    boxes = CASES[name]
    rule = AugmentConfig(sides=(0.3, 1.0), aspect=(0.5, 2.0), overlaps=tuple(OVERLAPS), attempts=ATTEMPTS)
    drawn = [crop_overlap(SIDE, SIDE, boxes, Draws(make_key(4, number)), rule) for number in range(DRAWS)]
    ours = np.array([[*(np.array(crop) / SIDE), len(kept)] for crop, kept in drawn])
    other = theirs[name]
    for column in range(4):
        assert stats.ks_2samp(ours[:, column].round(4), other[:, column].round(4)).pvalue > 0.001, column
    whole, others_whole = ((these[:, 2:4] > 0.9999).all(axis=1).mean() for these in (ours, other))
    assert abs(whole - others_whole) < 0.03
    for count in range(1, len(boxes) + 1):
        assert abs((ours[:, 4] == count).mean() - (other[:, 4] == count).mean()) < 0.03


def test_colours_are_dalis():
    pixels = busy(64, 48)
    made = ask_peer("dali", one=("colours", {"pixels": pixels.tolist(), "colours": COLOURS}))["one"]
    for colours, expected in zip(COLOURS, np.array(made), strict=True):
        ours = pixels.copy()
        change_colours(ours, colours)
        difference = np.abs(ours - expected)
        assert difference.max() <= 2, colours  # a level of the first step, stretched by the second
        # Today's DALI multiplies by numbers that differ from those of the original's time in the third decimal.
        assert difference.mean() < 0.25, colours
