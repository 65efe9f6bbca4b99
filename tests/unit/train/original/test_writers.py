"""Which files a recipe's original has, and that they behave as any file of a run."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from made_original import make_facts, make_step
from trainstone.measure.sink import watch
from trainstone.train.original.lines import LineFile, read_kept
from trainstone.train.original.writers import list_writers

FILES = {
    ("wmlce", "train"): {"nvlog.txt", "training.json"},
    ("wmlce", "bench"): {"nvlog.txt", "training_benchmark.json"},
    ("sc22", "train"): {"resnet_iterdur", "all_data.csv", "aggregated_data.csv"},
    ("sc22", "bench"): {"resnet_iterdur", "all_data.csv", "aggregated_data.csv"},
    ("tbd", "train"): {"training.log"},
    ("tbd", "bench"): {"throughput_data/batch_32.log"},
    ("mlperf", "train"): {"_1.log"},
    ("mlperf", "bench"): set(),
    ("mlperf_ssd", "train"): {"training.log", "_1.log"},
    ("mlperf_ssd", "bench"): set(),
}


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_each_original_has_its_files(tmp_path: Path, name: str, kind: str):
    (tmp_path / "mlperf.log").write_text(':::MLLOG {"time_ms": 1592643996250, "key": "seed", "value": 1}\n')
    with ExitStack() as files:
        sinks = [files.enter_context(sink) for sink in list_writers(make_facts(tmp_path, name, kind=kind))]
        assert list(watch(map(make_step, range(50)), sinks)) == [make_step(step) for step in range(50)]
        for sink in sinks:
            sink.finish("ok")
    written = [
        str(path.relative_to(tmp_path / "original")) for path in tmp_path.glob("original/**/*") if path.is_file()
    ]
    assert len(written) == len(FILES[name, kind])
    assert all(any(part in path for path in written) for part in FILES[name, kind])
    assert not [path for path in written if path.endswith(".partial")]


@pytest.mark.parametrize("kind", ["train", "bench"])
def test_other_recipes_have_none(tmp_path: Path, kind: str):
    assert list(list_writers(make_facts(tmp_path, "tbd", "original.name=none", kind=kind))) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "kind"), [key for key in FILES if not key[0].startswith("mlperf")])
def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path, name: str, kind: str):
    """Every text file of the run is /dev/full, which takes nothing."""
    (writer,) = list_writers(make_facts(tmp_path, name, kind=kind))
    file = getattr(writer._file, "_file", None)
    lines = writer._file if isinstance(writer._file, LineFile) else file
    lines.close()
    lines._file, lines.path = None, Path("/dev/full")
    lines.keep_bytes = 0
    with pytest.raises(OSError), writer:  # noqa: PT012
        list(watch(map(make_step, range(50)), [writer]))
        writer.finish("ok")


def test_a_file_keeps_what_it_is_told_and_nothing_is_touched_before(tmp_path: Path):
    path = tmp_path / "deep/er.txt"
    LineFile(path).close()
    assert not path.parent.exists()
    path.parent.mkdir()
    path.write_bytes(b"one\ntwo\nthr")
    kept = list(read_kept(path))
    assert kept == [(4, "one\n"), (8, "two\n")]
    file = LineFile(path, keep_bytes=4)
    file.flush()
    assert path.read_bytes() == b"one\ntwo\nthr"
    file.write("new é\n")
    file.close()
    assert path.read_text() == "one\nnew é\n"


def test_a_file_may_begin_again(tmp_path: Path):
    file = LineFile(tmp_path / "x")
    file.empty()
    file.write("one\n")
    file.empty()
    file.write("two\n")
    file.close()
    assert (tmp_path / "x").read_text() == "two\n"


def test_an_absent_file_has_nothing_to_keep(tmp_path: Path):
    assert list(read_kept(tmp_path / "absent")) == []
