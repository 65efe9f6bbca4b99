"""Over hours: a run killed at random steps again and again ends with the same bits; the loader's memory stays bounded.

TRAINSTONE_SOAK may be a number: the seed of the moments.
"""

import os
import random
import threading
from pathlib import Path

import psutil
import pytest

from support.builders.data_sets import make_set
from support.builders.loaders import make_loader
from support.builders.training_runs import assert_same, read_learned
from support.processes.command import find_run
from support.processes.forked import Nursery
from support.processes.launches import (
    draw_steps,
    find_launched,
    finish,
    kill_and_resume,
    kill_at,
    start,
    start_launch,
    train_words,
)
from trainstone.data.splits import open_split

SEED = os.environ.get("TRAINSTONE_SOAK")
pytestmark = pytest.mark.skipif(SEED is None, reason="needs make soak")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_killed_ten_times_it_ends_with_the_same_bits(nursery: Nursery, ranks: int):
    kills, steps, out = 10, 144, nursery.folder / f"undisturbed-{ranks}"
    assert {child.wait().code for child in start(nursery, ranks, "--out", str(out), steps=steps)} == {0}
    chance = random.Random(f"{SEED} {ranks}")
    learned, killed = kill_and_resume(nursery, ranks, kills, nursery.folder / f"killed-{ranks}", chance, steps)
    assert killed > kills // 2
    assert learned.result.quality is not None
    assert learned.result.quality.starts == 1 + killed
    assert learned.document["step"] == steps
    assert_same(learned, read_learned(find_run(out), ranks))


def test_rank_of_a_launched_run_killed_twenty_times_changes_nothing(tmp_path: Path):
    kills, steps, chance = 20, 480, random.Random(SEED)
    epochs = {"stop__epochs": steps * 2 / 12}
    calm, out = tmp_path / "calm", tmp_path / "killed"
    finish(start_launch(tmp_path, "local", "--ranks", "2", "--", *train_words(calm, **epochs)))
    words = train_words(out, **epochs)
    launched = start_launch(tmp_path, "local", "--ranks", "2", "--max-restarts", str(kills), "--", *words)
    for step in draw_steps(chance, kills, steps):
        kill_at(out, step, chance)
    finish(launched)
    learned = read_learned(find_run(out), 2)
    assert learned.result.quality is not None
    assert learned.result.quality.starts == kills + 1
    assert_same(learned, read_learned(find_run(calm), 2))
    assert not find_launched(out)


BATCHES = 100_000
GROWTH_BYTES = 8 << 20


@pytest.mark.parametrize(("storage", "cache"), [("recordio", "off"), ("folder", "files"), ("tfrecord", "pixels")])
def test_memory_stays_bounded_over_a_hundred_thousand_batches(tmp_path: Path, storage: str, cache: str):
    source = open_split(make_set(tmp_path / "set", storage, count=200), "train").source
    process = psutil.Process()
    with make_loader(source, cache=cache, cache_bytes=100_000, prefetch=3) as loader:
        seen = set()
        for number in range(BATCHES):
            images, _ = next(loader)
            seen.add(images.data_ptr())
            if number == 1000:
                early = process.memory_info().rss
        late = process.memory_info().rss
        assert len(seen) == 3 + 2
        assert loader.feed.cache.used_bytes <= 100_000
    assert late - early < GROWTH_BYTES
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader-")]
