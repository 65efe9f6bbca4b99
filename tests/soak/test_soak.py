"""Long tests: a run killed repeatedly at random steps ends with identical bits; the loader's memory stays bounded.

TRAINSTONE_SOAK may be a number: the seed of the random kills.
"""

import os
import random
import threading
from pathlib import Path

import psutil
import pytest

from support.builders.data_sets import make_set
from support.builders.loaders import make_loader
from support.builders.training_runs import assert_same, read_trained_run
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
def test_run_killed_ten_times_ends_with_same_bits(nursery: Nursery, ranks: int):
    kills, steps, out = 10, 144, nursery.folder / f"undisturbed-{ranks}"
    assert {child.wait().code for child in start(nursery, ranks, "--out", str(out), steps=steps)} == {0}
    chance = random.Random(f"{SEED} {ranks}")
    trained, killed = kill_and_resume(nursery, ranks, kills, nursery.folder / f"killed-{ranks}", chance, steps)
    assert killed > kills // 2
    assert trained.result.quality is not None
    assert trained.result.quality.starts == 1 + killed
    assert trained.document["step"] == steps
    assert_same(trained, read_trained_run(find_run(out), ranks))


def test_launched_run_with_rank_killed_twenty_times_ends_with_same_bits(tmp_path: Path):
    kills, steps, chance = 20, 480, random.Random(SEED)
    epochs = {"stop__epochs": steps * 2 / 12}
    calm, out = tmp_path / "calm", tmp_path / "killed"
    finish(start_launch(tmp_path, "local", "--ranks", "2", "--", *train_words(calm, **epochs)))
    words = train_words(out, **epochs)
    launched = start_launch(tmp_path, "local", "--ranks", "2", "--max-restarts", str(kills), "--", *words)
    for step in draw_steps(chance, kills, steps):
        kill_at(out, step, chance)
    finish(launched)
    trained = read_trained_run(find_run(out), 2)
    assert trained.result.quality is not None
    assert trained.result.quality.starts == kills + 1
    assert_same(trained, read_trained_run(find_run(calm), 2))
    assert not find_launched(out)


BATCHES = 100_000
GROWTH_BYTES = 8 << 20


@pytest.mark.parametrize(("storage", "cache"), [("recordio", "off"), ("folder", "files"), ("tfrecord", "pixels")])
def test_loader_memory_is_bounded_over_100000_batches(tmp_path: Path, storage: str, cache: str):
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
        assert loader.pipeline.cache.used_bytes <= 100_000
    assert late - early < GROWTH_BYTES
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader-")]
