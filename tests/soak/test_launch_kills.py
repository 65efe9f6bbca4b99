"""A rank of a launched run killed twenty times, at steps that nobody chose: the bits of a run that was not.

TRAINSTONE_SOAK may be a number: the seed of the steps.
"""

import os
import random
from pathlib import Path

from command import find_run
from launching import draw_steps, find_launched, finish, kill_at, start_launch, train_words
from small_training import assert_same, read_learned

KILLS, STEPS = 20, 480


def test_killed_twenty_times_it_ends_with_the_same_bits(tmp_path: Path):
    chance = random.Random(os.environ.get("TRAINSTONE_SOAK"))
    epochs = {"stop__epochs": STEPS * 2 / 12}
    calm = start_launch(tmp_path, "local", "--ranks", "2", "--", *train_words(tmp_path / "calm", **epochs))
    finish(calm)
    out = tmp_path / "killed"
    words = train_words(out, **epochs)
    launched = start_launch(tmp_path, "local", "--ranks", "2", "--max-restarts", str(KILLS), "--", *words)
    for step in draw_steps(chance, KILLS, STEPS):
        kill_at(out, step, chance)
    finish(launched)
    learned = read_learned(find_run(out), 2)
    assert learned.result.quality is not None
    assert learned.result.quality.starts == KILLS + 1
    assert_same(learned, read_learned(find_run(tmp_path / "calm"), 2))
    assert not find_launched(out)
