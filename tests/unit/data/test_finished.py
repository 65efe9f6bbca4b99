"""A shard that is whole gets its name, whoever looks and however often; one that was removed is made anew."""

import json
from pathlib import Path

import pytest

from trainstone.data.finished import clear_work, find_done, put_in_place
from trainstone.data.manifest import FileFacts, ShardFacts
from trainstone.data.storage.encoding import Shard

SHARD = Shard("train", "below/train.rec", 0, 1)
FACTS = ShardFacts(
    file="below/train.rec",
    bytes=4,
    crc32c="00000000",
    records=1,
    sidecars=(FileFacts(file="idx/train.idx", bytes=3, crc32c="00000000"),),
    skipped=(("\udcff.jpg", "no picture"),),
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "set/.trainstone"
    folder.mkdir(parents=True)
    (folder / "below%train.rec.partial").write_bytes(b"data")
    (folder / "idx%train.idx.partial").write_bytes(b"0 4")
    return folder


def write_done(work: Path) -> None:
    (work / "below%train.rec.done").write_text(json.dumps(FACTS.model_dump(mode="json")))


def test_a_shard_killed_before_it_got_its_name_gets_it_now(work: Path):
    target = work.parent
    write_done(work)
    assert find_done(work, target, SHARD) == FACTS
    assert (target / "below/train.rec").read_bytes() == b"data"
    assert (target / "idx/train.idx").read_bytes() == b"0 4"
    assert [path.name for path in work.iterdir()] == ["below%train.rec.done"]
    assert find_done(work, target, SHARD) == FACTS


def test_without_its_facts_it_is_not_whole(work: Path):
    assert find_done(work, work.parent, SHARD) is None
    assert not (work.parent / "below").exists()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"file": "../x"}', b"\xff", b"[" * 100_000])
def test_damaged_facts_are_none(work: Path, text: bytes):
    (work / "below%train.rec.done").write_bytes(text)
    assert find_done(work, work.parent, SHARD) is None


@pytest.mark.parametrize("removed", ["below/train.rec", "idx/train.idx"])
def test_what_somebody_removed_is_made_anew(work: Path, removed: str):
    target = work.parent
    write_done(work)
    find_done(work, target, SHARD)
    (target / removed).unlink()
    assert find_done(work, target, SHARD) is None
    assert not (work / "below%train.rec.done").exists()


def test_one_half_in_place_is_completed(work: Path):
    target = work.parent
    (target / "idx").mkdir()
    (work / "idx%train.idx.partial").rename(target / "idx/train.idx")
    assert put_in_place(work, target, FACTS)
    assert (target / "below/train.rec").exists()


def test_a_folder_is_put_in_place(work: Path):
    (work / "train.partial").mkdir()
    (work / "train.partial/x.jpg").write_bytes(b"x")
    facts = ShardFacts(file="train", bytes=1, crc32c="00000000", records=1)
    assert put_in_place(work, work.parent, facts)
    assert (work.parent / "train/x.jpg").read_bytes() == b"x"


def test_work_is_cleared_even_if_there_is_none(work: Path):
    clear_work(work)
    assert not work.exists()
    clear_work(work)
