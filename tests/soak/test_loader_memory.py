"""Memory of the loader over 100,000 batches of small pictures: bounded by prefetch x batch, whatever the time."""

import os
import threading
from pathlib import Path

import psutil
import pytest

from small_loaders import make_loader
from small_sets import make_set
from trainstone.data.splits import open_split

pytestmark = pytest.mark.skipif("TRAINSTONE_SOAK" not in os.environ, reason="needs make soak")
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
