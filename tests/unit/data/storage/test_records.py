"""A split in many record files: one number for each sample, few files open, many threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from small_sets import CLASSES, to_classify, write_shard
from trainstone.data.sample import ClassName
from trainstone.data.storage import records
from trainstone.data.storage.records import RecordSource
from trainstone.data.storage.tfrecord import TFRecordEncoder, TFRecordShard

SIZES = (3, 0, 1, 4)


@pytest.fixture
def source(tmp_path: Path) -> RecordSource:
    paths, first = [], 0
    for number, size in enumerate(SIZES):
        paths.append(tmp_path / f"train-{number}")
        write_shard(paths[-1], TFRecordEncoder("classify", CLASSES, 1), to_classify(size, first))
        first += size
    return RecordSource(paths, TFRecordShard)


def test_samples_are_numbered_through_all_files(source: RecordSource):
    assert len(source) == 8
    assert [source.read(number) for number in range(8)] == to_classify(8)
    assert [source.name(number) for number in (0, 3, 7)] == ["a/0000.jpg", "b/0003.jpg", "b/0007.jpg"]
    assert source.glance(3).labels == [(1, ClassName("b"))]
    assert (source.locate(0), source.locate(3)) == ((0, 0), (2, 0))
    assert source.where(3) == f"{source.paths[2]}, record 0 at byte 0"
    shard, offset = source.locate(5)
    assert shard == 3
    assert source.where(5) == f"{source.paths[3]}, record 1 at byte {offset}"
    for index in (-1, 8):
        with pytest.raises(IndexError):
            source.read(index)


def test_threads_may_read_at_once_while_files_come_and_go(source: RecordSource, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "OPEN_SHARDS", 1)
    numbers = [*range(8)] * 20
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(source.read, numbers)) == to_classify(8) * 20
