"""Killed ten times at steps that nobody chose, on one rank or several, a run ends with the bits of one that was not.

TRAINSTONE_SOAK may be a number: the seed of the moments.
"""

import os
import random

import pytest

from command import find_run
from killing import kill_and_resume, start
from nursery import Nursery
from small_training import assert_same, read_learned

KILLS, STEPS = 10, 144


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_killed_ten_times_it_ends_with_the_same_bits(nursery: Nursery, ranks: int):
    out = nursery.folder / f"undisturbed-{ranks}"
    assert {child.wait().code for child in start(nursery, ranks, "--out", str(out), steps=STEPS)} == {0}
    chance = random.Random(f"{os.environ.get('TRAINSTONE_SOAK')} {ranks}")
    learned, killed = kill_and_resume(nursery, ranks, KILLS, nursery.folder / f"killed-{ranks}", chance, STEPS)
    assert killed > KILLS // 2
    assert learned.result.quality is not None
    assert learned.result.quality.starts == 1 + killed
    assert learned.document["step"] == STEPS
    assert_same(learned, read_learned(find_run(out), ranks))
