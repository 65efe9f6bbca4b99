"""`trainstone data` on the command line: prepare, interrupt, resume, convert, verify, info."""

import gzip
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from support.builders.archives import make_tar, read_files, write_files
from support.builders.raw_data_sets import pack_image
from support.processes.forked import wait_until
from trainstone.data.storage.tfrecord import TFRecordShard
from trainstone.data.synthetic.generated import GeneratedSource
from trainstone.formats.recordio import ImageRecord

# Kills its own process (SIGKILL) some milliseconds after it has written one to three chunks.
KILL_SELF = """
import os, random, signal, threading
from trainstone.data import prepare
rng = random.Random({seed})
remaining = rng.randint(1, 3)
prepare.SYNC_BYTES = 10_000
append = prepare.ShardWriter.append
def count(*arguments):
    global remaining
    append(*arguments)
    remaining -= 1
    if remaining == 0:
        threading.Timer(rng.uniform(0, 0.01), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
prepare.ShardWriter.append = count
"""
STORAGES = ("recordio", "tfrecord", "folder", "wds")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 600), ("val", 60)):
        drawn = [GeneratedSource("classify", split, 12, 48, 48, 6).read(number) for number in range(12)]
        for number in range(count):
            sample = drawn[number % 12]
            path = root / split / sample.name.split("/")[0] / f"{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.image)
    return root


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "folder"])
def test_prepare_killed_ten_times_gives_same_files(images: Path, tmp_path: Path, storage: str, nursery):
    arguments = ["data", "imagenet", "--dataset", "folder", "--from", str(images), "--format", storage, "-q"]
    arguments += ["--shards", "7,2", "--workers", "1"] if storage == "tfrecord" else ["--workers", "1"]
    assert nursery.run(*arguments, "--to", str(tmp_path / "whole")).code == 0
    for seed in range(10):
        killed = nursery.start(
            *arguments, "--to", str(tmp_path / "set"), prepare=KILL_SELF.replace("{seed}", str(seed))
        )
        assert killed.wait().code == -signal.SIGKILL
        assert not (tmp_path / "set/manifest.json").exists()
        assert not (tmp_path / "set/train.rec").exists()  # it is renamed only when it is complete
    done = nursery.run(*arguments, "--to", str(tmp_path / "set"))
    assert done.code == 0, done.err
    assert read_files(tmp_path / "set") == read_files(tmp_path / "whole")


def test_prepare_with_three_ranks_equals_single_rank(images: Path, tmp_path: Path, nursery):
    arguments = ["data", "imagenet", "--dataset", "folder", "--from", str(images), "--format", "wds", "-q"]
    arguments += ["--shards", "6,2"]
    assert nursery.run(*arguments, "--to", str(tmp_path / "single")).code == 0
    assert nursery.run(*arguments, "--to", str(tmp_path / "shared"), world=3).code == 0
    assert read_files(tmp_path / "shared") == read_files(tmp_path / "single")


def test_prepare_again_does_nothing(images: Path, quick):
    arguments = ["data", "imagenet", "--dataset", "folder", "--from", str(images), "--to", "set", "--limit", "20"]
    first, second = quick(*arguments), quick(*arguments)
    assert first.code == second.code == 0
    assert "recordio: 20 train, 20 val; 6 classes, 2 files" in first.out
    assert "it was already complete; nothing was written" in second.out
    other = quick(*arguments[:-1], "21")
    assert other.code == 3
    assert "already contains another data set" in other.err


@pytest.mark.parametrize("storage", STORAGES)
def test_boxes_round_trip_through_every_storage(tmp_path: Path, quick, storage: str):
    made = quick("data", "make", "detect", "--to", "boxes", "--count", "8", "--val", "2", "--size", "120x90", "-q")
    assert made.code == 0, made.err
    assert quick("data", "convert", "boxes", "there", "--format", storage, "-q").code == 0
    assert quick("data", "convert", "there", "back", "--format", "folder", "-q").code == 0
    assert read_files(tmp_path / "back/annotations") == read_files(tmp_path / "boxes/annotations")
    assert read_files(tmp_path / "back/train") == read_files(tmp_path / "boxes/train")


def test_info_prints_summary_and_writes_page(tmp_path: Path, quick):
    assert quick("data", "make", "detect", "--to", "set", "--count", "12", "--val", "4", "-q").code == 0
    done = quick("data", "info", "set", "--page", "set.html")
    assert done.code == 0, done.err
    assert "12 images" in done.out
    assert "set.html" in done.out
    page = (tmp_path / "set.html").read_text()
    assert page.count("data:image/jpeg;base64,") >= 12
    summary = quick("data", "info", "set", "--json").json()
    assert [split["records"] for split in summary["splits"]] == [12, 4]


def test_make_writes_to_cache_by_default(quick, tmp_path: Path):
    done = quick("data", "make", "classify", "--count", "10", "--val", "5", "--size", "32", "--json",
                      env={"TRAINSTONE_CACHE": str(tmp_path / "cache")})  # fmt: skip
    assert done.code == 0, done.err
    made = Path(done.json()["path"])
    assert made.is_relative_to(tmp_path / "cache/data")
    assert len(list(made.rglob("*.jpg"))) == 15


def test_ctrl_c_stops_cleanly_and_hints_at_resume(tmp_path: Path, nursery):
    arguments = ["data", "make", "classify", "--to", "set", "--count", "3000", "--val", "0", "--size", "64"]
    # The garbage collector closes a file that is being opened when the signal arrives.
    quiet = "import warnings; warnings.simplefilter('ignore', ResourceWarning)"
    process = nursery.start(*arguments, cwd=tmp_path, prepare=quiet)
    wait_until(lambda: any((tmp_path / "set/.trainstone").glob("*.partial/*")))
    process.send(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 130
    assert "run the same command again to resume" in ended.err
    assert "Traceback" not in ended.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB; this requires root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if done.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_full_disk_is_reported_and_work_resumes_with_free_space(small_disk: Path, quick):
    arguments = ["data", "make", "classify", "--format", "recordio", "--size", "200", "--val", "0", "-q"]
    arguments += ["--to", str(small_disk / "set"), "--count", "500"]
    full = quick(*arguments)
    assert full.code == 3
    assert "the disk is full" in full.err
    assert "run the same command again" in full.err
    assert not (small_disk / "set/train.rec").exists()
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    done = quick(*arguments)
    assert done.code == 0, done.err
    assert quick("data", "verify", str(small_disk / "set"), "-q").code == 0


def test_convert_uses_bounded_memory(tmp_path: Path):
    """Convert a record file larger than the memory limit of the process."""
    image = GeneratedSource("classify", "train", 1, 64, 64, 2).read(0).image + bytes(1 << 20)
    with (tmp_path / "big.rec").open("wb") as file:
        for number in range(400):
            file.write(pack_image(ImageRecord((0.0,), number, image)))
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({300 << 20},) * 2)\n"
    code = limit + "from trainstone.cli.main import main\nmain()\n"
    arguments = ["data", "convert", "big.rec", "out", "--format", "tfrecord", "--workers", "2"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.is_file()) > 400 << 20


# A small ILSVRC2012 in the layout of the published tars.
SYNSETS = ("n01440764", "n01443537", "n02105855")
LABELS = ("n02105855", "n01440764", "n01443537", "n01443537")
XML = """<annotation><folder>x</folder><filename>%s</filename><size><width>100</width><height>50</height></size>
<object><name>{synset}</name><bndbox><xmin>10</xmin><ymin>5</ymin><xmax>60</xmax><ymax>45</ymax></bndbox></object>
</annotation>"""


def image(number: int) -> bytes:
    return GeneratedSource("classify", "train", 100, 60, 40, 2).read(number).image


def encode(kind: str, mode: str) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(image(1))).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def train_images() -> dict[str, dict[str, bytes]]:
    """Six images per class; one is a PNG named .JPEG, one a CMYK JPEG."""
    found = {
        synset: {f"{synset}_{10 * n}.JPEG": image(6 * label + n) for n in range(6)}
        for label, synset in enumerate(SYNSETS)
    }
    found[SYNSETS[0]][f"{SYNSETS[0]}_20.JPEG"] = encode("PNG", "RGB")
    found[SYNSETS[1]][f"{SYNSETS[1]}_40.JPEG"] = encode("JPEG", "CMYK")
    return found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archives")
    inner = {f"{synset}.tar": make_tar(files) for synset, files in train_images().items()}
    val = {f"ILSVRC2012_val_{n + 1:08d}.JPEG": image(50 + n) for n in range(4)}
    boxes = {f"{s}/{s}_0.xml": XML.format(synset=s).encode() for s in SYNSETS}
    return write_files(
        root,
        {
            "ILSVRC2012_img_train.tar": make_tar(inner),
            "ILSVRC2012_img_val.tar": make_tar(val),
            "imagenet_2012_validation_synset_labels.txt": "\n".join(LABELS).encode() + b"\n",
            "ILSVRC2012_bbox_train_v2.tar.gz": gzip.compress(make_tar(boxes)),
            "synset_words.txt": b"n01440764 tench, Tinca tinca\nn01443537 goldfish\nn02105855 Shetland sheepdog\n",
        },
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Path:
    root = tmp_path_factory.mktemp("folders")
    for synset, files in train_images().items():
        write_files(root / "train" / synset, files)
        box = XML.format(synset=synset).encode()
        write_files(root / "Annotation" / synset, {f"{synset}_0.xml": box})
    for number, synset in enumerate(LABELS):
        write_files(root / "val" / synset, {f"ILSVRC2012_val_{number + 1:08d}.JPEG": image(50 + number)})
    (root / "synset_words.txt").write_bytes((archives / "synset_words.txt").read_bytes())
    return root


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "folder", "wds"])
def test_imagenet_from_tars_equals_folders(archives: Path, folders: Path, tmp_path: Path, quick, storage: str):
    for source in (archives, folders):
        done = quick("data", "imagenet", "--from", str(source), "--to", source.name, "--format", storage, "-q")
        assert done.code == 0, done.err
        assert "18 train, 4 val; 3 classes" in done.out
        assert "repaired  1 image: PNG named .JPEG" in done.out
        assert "repaired  1 image: CMYK JPEG" in done.out
    archived, plain = (read_files(tmp_path / source.name) for source in (archives, folders))
    assert archived | {"manifest.json": b""} == plain | {"manifest.json": b""}
    assert quick("data", "verify", archives.name, "-q").code == 0


def test_imagenet_tfrecords_have_original_features(archives: Path, tmp_path: Path, quick):
    arguments = ["data", "imagenet", "--from", str(archives), "--to", "set", "--format", "tfrecord", "--shards", "2,1"]
    assert quick(*arguments, "-q").code == 0
    found = {}
    for path in sorted((tmp_path / "set").glob("train-*-of-00002")):
        shard = TFRecordShard(path)
        for span in shard.file.spans():
            features = {name: feature.values for name, feature in shard.features(span.offset).items()}
            found[features["image/filename"][0].decode()] = features
        shard.close()
    assert len(found) == 18
    dog = found["n02105855_0.JPEG"]
    assert dog["image/class/label"] == [3]
    assert dog["image/class/synset"] == [b"n02105855"]
    assert dog["image/class/text"] == [b"Shetland sheepdog"]
    assert dog["image/height"] == [40]
    assert dog["image/width"] == [60]
    assert dog["image/object/bbox/xmin"] == pytest.approx([0.1])
    assert dog["image/object/bbox/ymax"] == pytest.approx([0.9])
    assert dog["image/object/bbox/label"] == [3]
    assert dog["image/encoded"] == [image(12)]
    repaired = found["n01440764_20.JPEG"]
    assert repaired["image/format"] == [b"JPEG"]
    assert repaired["image/encoded"][0].startswith(b"\xff\xd8")
    assert found["n01443537_10.JPEG"]["image/object/bbox/xmin"] == []


def test_no_repair_keeps_image_bytes(archives: Path, tmp_path: Path, quick):
    arguments = ["data", "imagenet", "--from", str(archives), "--to", "set", "--format", "folder", "--no-repair", "-q"]
    assert quick(*arguments).code == 0
    for synset, files in train_images().items():
        for name, content in files.items():
            assert (tmp_path / "set/train" / synset / name).read_bytes() == content
