"""Preparation: the same bytes however it is interrupted, shared out or repeated; nothing half-made looks whole."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from trainstone.data import partial, prepare
from trainstone.data.generated.source import GeneratedSource, generate
from trainstone.data.manifest import read_manifest
from trainstone.data.plan import Plan, Treatment, make_plan
from trainstone.data.progress import Progress
from trainstone.data.recognise import open_dataset
from trainstone.data.sample import ClassName, DataSet, Sample, Split
from trainstone.errors import DataError
from trainstone.machine.ranks import Rank

STORAGES = ("recordio", "tfrecord", "folder", "wds")
PICTURES = [GeneratedSource("classify", "train", 6, 32, 32, 2).read(number) for number in range(6)]


class MadeUp:
    """Samples out of memory; reads in threads, and fails where it is told to."""

    def __init__(self, count: int, fail_at: int | None = None, error: Exception | None = None) -> None:
        self.count = count
        self.fail_at = fail_at
        self.error = error or DataError("no such luck")

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> Sample:
        if index == self.fail_at:
            raise self.error
        return Sample(self.name(index), PICTURES[index % 6].image, index % 2)

    def name(self, index: int) -> str:
        return f"{'ab'[index % 2]}/{index:04d}.jpg"

    def where(self, index: int) -> str:
        return f"made-up picture {index}"

    def fingerprint(self) -> str:
        return f"made up {self.count}"


def plan_for(storage: str, source: MadeUp, **wishes) -> Plan:
    found = DataSet("classify", "made up", [ClassName("a"), ClassName("b")], [Split("train", source)], "made-up")
    return make_plan(found, storage, **wishes)


def run(plan: Plan, target: Path, rank: Rank | None = None) -> None:
    for _ in prepare.prepare(plan, target, rank or Rank(), 2):
        pass


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "JOURNAL_BYTES", 20_000)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_written_is_read_back(storage: str, tmp_path: Path):
    run(plan_for(storage, MadeUp(50), shuffle=False), tmp_path / "set")
    found = open_dataset(tmp_path / "set")
    source = found.splits[0].source
    assert [known.name for known in found.classes] == ["a", "b"]
    read = sorted((source.read(number) for number in range(len(source))), key=lambda sample: sample.name)
    wanted = sorted((MadeUp(50).read(number) for number in range(50)), key=lambda sample: sample.name)
    assert [(s.name, s.label, s.image) for s in read] == [(s.name, s.label, s.image) for s in wanted]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("fail_at", [0, 17, 120, 199])
def test_interrupted_work_goes_on_to_the_same_bytes(storage: str, fail_at: int, tmp_path: Path, small_journal: None):
    run(plan_for(storage, MadeUp(200)), tmp_path / "undisturbed")
    broken = MadeUp(200, fail_at, RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        run(plan_for(storage, broken), tmp_path / "set")
    assert not (tmp_path / "set/manifest.json").exists()
    for path in (tmp_path / "set/.trainstone").glob("*.partial"):
        if path.is_file():  # what the system had not brought to disk may be anything
            with path.open("ab") as file:
                file.write(b"rubbish behind the journal's mark")
    run(plan_for(storage, MadeUp(200)), tmp_path / "set")
    assert digest(tmp_path / "set") == digest(tmp_path / "undisturbed")


def test_work_goes_on_from_the_journal_and_not_from_the_start(tmp_path: Path, small_journal: None):
    with pytest.raises(RuntimeError):
        run(plan_for("recordio", MadeUp(200, 199, RuntimeError("killed")), shuffle=False), tmp_path / "set")
    read: list[int] = []
    source = MadeUp(200)
    source.read = lambda index: (read.append(index), MadeUp.read(source, index))[1]  # type: ignore[method-assign]
    run(plan_for("recordio", source, shuffle=False), tmp_path / "set")
    assert min(read) > 100


def test_ranks_share_the_shards_and_the_last_writes_the_manifest(tmp_path: Path):
    run(plan_for("tfrecord", MadeUp(100), shards={"train": 5}), tmp_path / "alone")
    plan = plan_for("tfrecord", MadeUp(100), shards={"train": 5})
    for number in (2, 0, 1):
        assert not (tmp_path / "shared/manifest.json").exists()
        run(plan, tmp_path / "shared", Rank(number, 3))
    assert digest(tmp_path / "shared") == digest(tmp_path / "alone")


def test_a_finished_set_is_recognised(tmp_path: Path):
    run(plan_for("recordio", MadeUp(20)), tmp_path)
    before = (tmp_path / "train.rec").stat().st_mtime_ns
    assert list(prepare.prepare(plan_for("recordio", MadeUp(20)), tmp_path, Rank(), 1)) == []
    assert (tmp_path / "train.rec").stat().st_mtime_ns == before


def test_another_set_is_not_touched(tmp_path: Path):
    run(plan_for("recordio", MadeUp(20)), tmp_path)
    before = digest(tmp_path)
    with pytest.raises(DataError, match="or the same made with other options: made-up as recordio, 20 records"):
        run(plan_for("recordio", MadeUp(21)), tmp_path)
    assert digest(tmp_path) == before


def test_unfinished_work_of_another_command_is_not_touched(tmp_path: Path):
    with pytest.raises(RuntimeError):
        run(plan_for("wds", MadeUp(50, 40, RuntimeError("killed"))), tmp_path)
    with pytest.raises(DataError, match="unfinished work of another command"):
        run(plan_for("tfrecord", MadeUp(50)), tmp_path)


def test_a_folder_with_other_things_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(DataError, match="is not empty"):
        run(plan_for("recordio", MadeUp(5)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_shard_that_somebody_removed_is_made_again(tmp_path: Path):
    run(plan_for("tfrecord", MadeUp(40), shards={"train": 4}), tmp_path / "whole")
    with pytest.raises(RuntimeError):
        run(plan_for("tfrecord", MadeUp(40, 5, RuntimeError()), shards={"train": 4}), tmp_path / "set")
    written = sorted(path for path in (tmp_path / "set").iterdir() if path.is_file())
    for path in written[:1]:
        path.unlink()
    run(plan_for("tfrecord", MadeUp(40), shards={"train": 4}), tmp_path / "set")
    assert digest(tmp_path / "set") == digest(tmp_path / "whole")


def test_a_second_writer_is_turned_away(tmp_path: Path):
    plan = plan_for("recordio", MadeUp(200))
    first = prepare.prepare(plan, tmp_path, Rank(), 1)
    next(first)
    with pytest.raises(DataError, match=r"train\.rec is being written by another process"):
        run(plan, tmp_path)
    assert sum(1 for _ in first) > 0
    assert read_manifest(tmp_path) is not None


def test_a_bad_picture_ends_the_work_and_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="made-up picture 7: no such luck") as caught:
        run(plan_for("recordio", MadeUp(20, 7)), tmp_path)
    assert caught.value.hint is not None
    assert "--on-bad skip" in caught.value.hint


def test_bad_pictures_are_left_out_if_asked_and_counted(tmp_path: Path):
    run(plan_for("recordio", MadeUp(20, 7), treatment=Treatment(skip_bad=True)), tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.splits[0].records == 19
    assert manifest.shards[0].skipped == (("b/0007.jpg", "no such luck"),)


def test_pictures_are_resized_and_encoded_anew_if_asked(tmp_path: Path):
    from trainstone.data.picture.look import look

    run(plan_for("recordio", MadeUp(6), treatment=Treatment(resize=20, quality=50)), tmp_path)
    source = open_dataset(tmp_path).splits[0].source
    for number in range(6):
        image = source.read(number).image
        assert look(image)[:3] == ("jpeg", 20, 20)
        assert len(image) < len(PICTURES[number].image)


def test_a_disk_that_is_too_small_is_told_beforehand(tmp_path: Path):
    source = MadeUp(5)
    source.size_bytes = lambda index: 1 << 60  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"free; the pictures alone need"):
        run(plan_for("recordio", source), tmp_path)


def test_a_disk_that_fills_up_is_told_and_work_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(file, buffers) -> None:
        raise OSError(28, "No space left on device", "train.rec")

    with monkeypatch.context() as patched:
        patched.setattr(partial, "write_all", refuse)
        with pytest.raises(DataError, match=r"the disk is full: train\.rec") as caught:
            run(plan_for("recordio", MadeUp(20)), tmp_path / "set")
    assert "goes on where it stopped" in (caught.value.hint or "")
    assert not (tmp_path / "set/train.rec").exists()
    run(plan_for("recordio", MadeUp(20)), tmp_path / "set")
    assert (tmp_path / "set/train.rec").exists()


def test_two_pictures_with_one_name_do_not_become_one_file(tmp_path: Path):
    source = MadeUp(4)
    source.name = lambda index: f"x/{index % 2}.jpg"  # type: ignore[method-assign]
    with pytest.raises(DataError, match="two pictures are named"):
        run(plan_for("folder", source), tmp_path)


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "a//x.jpg", "x\0.jpg", ""])
def test_names_in_records_cannot_lead_out_of_the_folder(name: str, tmp_path: Path):
    class Hostile(MadeUp):
        def read(self, index: int) -> Sample:
            return Sample(name, PICTURES[0].image, boxes=(), id=index)

    found = DataSet("detect", "made up", [ClassName("a")], [Split("train", Hostile(1))])
    with pytest.raises(DataError, match="no name"):
        run(make_plan(found, "folder"), tmp_path / "set")
    assert not list(tmp_path.rglob("*.jpg"))


def test_generated_pictures_are_drawn_by_processes(tmp_path: Path):
    found = generate("classify", {"train": 40}, width=32, height=32, num_classes=2)
    run(make_plan(found, "wds", shuffle=False), tmp_path)
    source = open_dataset(tmp_path).splits[0].source
    assert source.read(3).image == GeneratedSource("classify", "train", 40, 32, 32, 2).read(3).image


def test_progress_counts_what_was_done_before(tmp_path: Path):
    def steps(source: MadeUp) -> Iterator[Progress]:
        return prepare.prepare(plan_for("tfrecord", source, shards={"train": 4}, shuffle=False), tmp_path, Rank(), 1)

    with pytest.raises(RuntimeError):
        list(steps(MadeUp(40, 35, RuntimeError())))
    told = list(steps(MadeUp(40)))
    assert told[0].done > 30
    assert told[-1][1:3] == (40, 40)


@pytest.mark.parametrize("storage", ["folder", "wds"])
def test_two_pictures_of_one_name_are_met_across_an_interruption(storage: str, tmp_path: Path, small_journal: None):
    def name(index: int) -> str:
        return f"a/{index % 150:04d}.jpg"

    broken, whole = MadeUp(200, 140, RuntimeError("killed")), MadeUp(200)
    broken.name = whole.name = name  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run(plan_for(storage, broken, shuffle=False), tmp_path)
    with pytest.raises(DataError, match="two pictures are named"):
        run(plan_for(storage, whole, shuffle=False), tmp_path)


def test_the_second_of_one_name_is_left_out_if_asked(tmp_path: Path):
    source = MadeUp(4)
    source.name = lambda index: f"a/{index % 3}.jpg"  # type: ignore[method-assign]
    run(plan_for("wds", source, shuffle=False, treatment=Treatment(skip_bad=True)), tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.shards[0].skipped == (("a/0.jpg", "another picture has the same name"),)
    assert manifest.splits[0].records == 3


def test_a_picture_that_becomes_a_jpeg_is_called_so(tmp_path: Path):
    class Pngs(MadeUp):
        def read(self, index: int) -> Sample:
            buffer = io.BytesIO()
            Image.new("RGB", (30, 20)).save(buffer, "PNG")
            return Sample(f"a/{index}.png", buffer.getvalue(), 0)

    run(plan_for("folder", Pngs(3), treatment=Treatment(resize=10)), tmp_path / "small")
    assert sorted(path.name for path in (tmp_path / "small/train/a").iterdir()) == ["0.jpg", "1.jpg", "2.jpg"]
    run(plan_for("folder", Pngs(3)), tmp_path / "same")
    assert sorted(path.name for path in (tmp_path / "same/train/a").iterdir()) == ["0.png", "1.png", "2.png"]


def test_labels_that_are_no_numbers_are_refused(tmp_path: Path):
    class Odd(MadeUp):
        def read(self, index: int) -> Sample:
            return Sample("x.jpg", PICTURES[0].image, values=(float("nan"),))

    with pytest.raises(DataError, match="has a label or a box that is no number"):
        run(plan_for("recordio", Odd(1)), tmp_path)


def test_what_cannot_even_be_named_is_skipped_by_its_place(tmp_path: Path):
    source = MadeUp(4, 2)

    def refuse(index: int) -> str:
        raise DataError("no name")

    source.name = refuse  # type: ignore[method-assign]
    source.read = lambda index: MadeUp(4, 2).read(index)  # type: ignore[method-assign]
    run(plan_for("recordio", source, treatment=Treatment(skip_bad=True)), tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.shards[0].skipped == (("made-up picture 2", "no such luck"),)


def test_work_that_stopped_at_a_bad_picture_goes_on_without_it(tmp_path: Path):
    with pytest.raises(DataError):
        run(plan_for("recordio", MadeUp(20, 7)), tmp_path)
    run(plan_for("recordio", MadeUp(20, 7), treatment=Treatment(skip_bad=True)), tmp_path)
    assert (tmp_path / "train.rec").exists()
