"""Our crops around boxes have the distribution of TensorFlow's own sample_distorted_bounding_box."""

import functools
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from peers import ask_peer
from trainstone.config.schema import AugmentConfig
from trainstone.data.feeding.crops import crop_boxes
from trainstone.data.feeding.draws import Draws, make_key
from trainstone.data.sample import Box

DRAWS = 6_000
BOX, SMALL = Box(0, 0.3, 0.4, 0.6, 0.9), Box(1, 0.05, 0.1, 0.15, 0.2)


class Case(NamedTuple):
    width: int
    height: int
    boxes: tuple[Box, ...] = ()
    covered: float = 0.1
    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (0.75, 1.33)
    attempts: int = 100


CASES = {
    "photo without a box": Case(500, 375),
    "portrait": Case(333, 500, (BOX,)),
    "square with two boxes": Case(256, 256, (BOX, SMALL), covered=0.5),
    "small box held whole": Case(400, 300, (SMALL,), covered=1.0, area=(0.05, 0.6)),
    "large share of the picture": Case(300, 300, covered=0.6),
    "narrow": Case(600, 90, (BOX,)),
    "tiny": Case(20, 14),
    "hard to hit": Case(120, 160, (SMALL,), covered=1.0, area=(0.05, 0.1), attempts=5),
    "other ranges": Case(640, 480, (SMALL,), area=(0.1, 0.5), aspect=(0.5, 2.0)),
    "box of no pixel": Case(50, 40, (Box(0, 0.51, 0.51, 0.511, 0.511),), attempts=5),
    # Not 0.8: of 31 x 40 that is 992 pixels exactly, which 32-bit floats of TensorFlow's place just above 31 x 32.
    "nearly all of it": Case(31, 40, (BOX,), area=(0.81, 1.0), attempts=20),
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    jobs: dict[str, Any] = {}
    for name, case in CASES.items():
        boxes = [[box.top, box.left, box.bottom, box.right] for box in case.boxes]
        jobs[name] = {**case._asdict(), "boxes": boxes, "draws": DRAWS, "seed": len(jobs) + 1}
    answers = ask_peer("tensorflow", crops=jobs)["crops"]
    return {name: np.array(crops) for name, crops in answers.items()}


@functools.cache
def draw(case: Case) -> np.ndarray:
    rule = AugmentConfig(area=case.area, aspect=case.aspect, min_object_covered=case.covered, attempts=case.attempts)
    keys = [make_key(1, 2, number) for number in range(DRAWS)]
    return np.array([crop_boxes(case.width, case.height, case.boxes, Draws(key), rule) for key in keys])


def measure(crops: np.ndarray) -> dict[str, np.ndarray]:
    left, top, width, height = crops.T
    return {
        "area": width * height,
        "aspect": width / height,
        "left": left,
        "top": top,
        "width": width,
        "height": height,
        "right": left + width,
        "bottom": top + height,
    }


@pytest.mark.parametrize("name", CASES)
def test_every_measure_has_tensorflows_distribution(name: str, theirs: dict[str, np.ndarray]):
    case, other = CASES[name], measure(theirs[name])
    for what, values in measure(draw(case)).items():
        found = stats.ks_2samp(values, other[what])
        assert found.pvalue > 0.001, f"{what}: {found}"


@pytest.mark.parametrize("name", CASES)
def test_the_whole_picture_is_as_frequent_and_extremes_agree(name: str, theirs: dict[str, np.ndarray]):
    case, crops, other = CASES[name], draw(CASES[name]), theirs[name]
    whole = np.array([0, 0, case.width, case.height])
    ours, tensorflows = ((these == whole).all(axis=1).mean() for these in (crops, other))
    assert abs(ours - tensorflows) < 0.03
    area, others_area = (these[:, 2] * these[:, 3] for these in (crops, other))
    spread = 0.02 * case.width * case.height
    assert abs(area.min() - others_area.min()) <= spread
    assert abs(area.max() - others_area.max()) <= spread


def test_tiny_pictures_have_the_same_few_crops(theirs: dict[str, np.ndarray]):
    """Rounding shows where there are few pixels: each size of crop is as frequent as TensorFlow's."""
    ours, other = (Counter(map(tuple, crops[:, 2:].tolist())) for crops in (draw(CASES["tiny"]), theirs["tiny"]))
    often = [size for size, count in (ours + other).items() if count > 40]
    table = [[counts[size] for size in often] for counts in (ours, other)]
    assert stats.chi2_contingency(table).pvalue > 0.001
