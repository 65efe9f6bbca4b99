"""Batches by DALI against those by our own threads, in the environment that has both: order, crops, labels, pixels."""

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from command import ROOT
from made_sets import draw, find_real
from peers import PEERS, find_peer, run_peer
from trainstone.data.picture.decode import decode

# Grey levels, of one picture's mean; measured on photos: 0.13 without antialiasing, 0.21 with it.
WORST = 0.3
CLASSES = 30
KINDS = {"gif": "P", "webp": "RGB", "tiff": "RGB", "bmp": "RGB", "png": "RGBA", "jpeg": "CMYK"}
TRAINING: dict[str, Any] = {
    "area": {},
    "antialias": {"augment": {"resize": "antialias"}},
    "centre": {"augment": {"crop": "centre"}},
    "boxes, mirrored": {"augment": {"crop": "boxes", "flip": 1.0}},
    "exact": {"loader": {"decode": "exact"}},
    "cache": {"loader": {"cache": "files"}},
}
JOBS: dict[str, Any] = {
    **{name: {"set": "singles", "steps": 9, **job} for name, job in TRAINING.items()},
    **{
        f"validation {how}": {"set": "singles", "train": False, "augment": {"val_resize": how}, "batch_size": 7}
        for how in ("antialias", "bilinear")
    },
    "from step 3": {"set": "singles", "steps": 6, "first_step": 3},
    "one thread": {"set": "singles", "steps": 9, "loader": {"threads": 1, "prefetch": 1}},
    "five threads": {"set": "singles", "steps": 9, "loader": {"threads": 5}},
    "ranks train": {"set": "singles", "steps": 2, "ranks": 3, "batch_size": 5},
    "ranks val": {"set": "singles", "steps": 2, "ranks": 3, "batch_size": 5, "train": False},
    "pixels": {"set": "singles", "loader": {"cache": "pixels"}},
    "few classes": {"set": "singles", "num_classes": CLASSES - 1},
    "damaged": {"set": "damaged"},
    "damaged, skipped": {"set": "damaged", "steps": 10, "loader": {"on_bad": "skip"}, "augment": {"crop": "whole"}},
    "damaged, validation": {"set": "damaged", "steps": 3, "loader": {"on_bad": "skip"}, "train": False},
}


@pytest.fixture(scope="module", autouse=True)
def peer() -> Iterator[Path]:
    """Where DALI is; without it no set is made. It runs the trainstone beside these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        yield find_peer("dali")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Class folders of one picture each, so that a label tells the picture: many kinds, or one that breaks off."""
    roots = {name: tmp_path_factory.mktemp(name) for name in ("singles", "damaged")}
    for split in ("train", "val"):
        pictures = [draw(split, number) for number in range(CLASSES)]
        broken = pictures[13][: len(pictures[13]) // 2]
        write_classes(roots["damaged"] / split, [*pictures[:13], broken, *pictures[14:20]])
        for number, (kind, mode) in enumerate(KINDS.items(), start=4):
            pictures[number] = save(pictures[number], kind, mode)
        turned = Image.Exif()
        turned[0x0112] = 6
        pictures[11] = save(pictures[11], "jpeg", "RGB", exif=turned)
        write_classes(roots["singles"] / split, pictures)
    return roots


@pytest.fixture(scope="module")
def made(sets: dict[str, Path]) -> dict[str, Any]:
    """What both engines make of all jobs."""
    return compare({name: {"steps": 5, **job, "set": str(sets[job["set"]])} for name, job in JOBS.items()})


def write_classes(folder: Path, pictures: list[bytes]) -> None:
    for number, data in enumerate(pictures):
        path = folder / f"class{number:02d}/picture.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)


def save(jpeg: bytes, kind: str, mode: str, **options: Any) -> bytes:
    """The same picture in another form."""
    file = io.BytesIO()
    Image.fromarray(decode(jpeg)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def compare(jobs: dict[str, Any]) -> Any:
    """See loader_dali.py."""
    return json.loads(run_peer("dali", PEERS / "loader_dali.py", text=json.dumps(jobs)).splitlines()[-1])


def check_same(found: Any) -> list[int]:
    """Both engines made the same; return the labels in their order."""
    threads, dali = found["threads"], found["dali"]
    assert (threads["error"], dali["error"]) == (None, None)
    assert dali["labels"] == threads["labels"]
    assert dali["skipped"] == threads["skipped"]
    assert found["worst"] < WORST
    return list(itertools.chain.from_iterable(dali["labels"]))


@pytest.mark.parametrize("name", TRAINING)
def test_training_batches_are_the_same(made, name):
    labels = check_same(made[name])
    assert len(labels) == 9 * 8
    assert sorted(labels[:CLASSES]) == [*range(CLASSES)]
    assert len(set(made[name]["dali"]["digests"])) == 9


def test_quick_and_exact_cosine_transforms_are_both_asked_for(made):
    assert made["exact"]["dali"]["digests"] != made["area"]["dali"]["digests"]


@pytest.mark.parametrize("resize", ["antialias", "bilinear"])
def test_validation_batches_are_the_same(made, resize):
    assert check_same(made[f"validation {resize}"]) == [*range(CLASSES), *[-1] * 5]


def test_any_step_can_be_the_first(made):
    check_same(made["from step 3"])
    for what in ("labels", "digests"):
        assert made["from step 3"]["dali"][what] == made["area"]["dali"][what][3:]


@pytest.mark.parametrize("name", ["one thread", "five threads", "cache"])
def test_threads_and_cache_change_nothing(made, name):
    assert made[name]["dali"] == made["area"]["dali"]


@pytest.mark.parametrize("name", ["ranks train", "ranks val"])
def test_three_ranks_have_every_picture_once(made, name):
    assert sorted(check_same(made[name])) == [*range(CLASSES)]


def test_a_damaged_picture_is_named(made, sets):
    error, told, hint = made["damaged"]["dali"]["error"]
    assert error == "DataError"
    assert str(sets["damaged"] / "train/class13/picture.jpg") in told
    assert "truncated JPEG" in told
    assert "loader.on_bad=skip" in hint
    for what in ("error", "labels"):
        assert made["damaged"]["dali"][what] == made["damaged"]["threads"][what]


def test_a_damaged_picture_is_left_out_and_counted(made):
    labels = check_same(made["damaged, skipped"])
    assert len(labels) == 80
    assert 13 not in labels
    assert made["damaged, skipped"]["dali"]["skipped"] >= 4  # of 20 pictures, four times; more where it is drawn again


def test_a_damaged_picture_does_not_count_in_validation(made):
    labels = check_same(made["damaged, validation"])
    assert labels == [*range(13), -1, *range(14, 20), *[-1] * 4]
    assert made["damaged, validation"]["dali"]["skipped"] == 1


def test_a_label_beyond_the_network_is_told(made):
    error, told, _ = made["few classes"]["dali"]["error"]
    assert error == "DataError"
    assert f"class {CLASSES - 1}" in told


def test_decoded_pictures_cannot_be_cached(made):
    error, told, hint = made["pixels"]["dali"]["error"]
    assert (error, hint) == ("ConfigError", "--set loader.cache=files")
    assert "loader.cache = pixels" in told


@pytest.mark.parametrize("name", ["records/tfrecord", "records/recordio/dali_extra"])
def test_real_photos(name):
    job = {"set": str(find_real(name)), "steps": 4, "batch_size": 12, "image_size": 224}
    ways = {
        "train": {},
        "train antialias": {"augment": {"resize": "antialias"}},
        "val": {"train": False},
        "val bilinear": {"train": False, "augment": {"val_resize": "bilinear"}},
    }
    for found in compare({way: {**job, **more} for way, more in ways.items()}).values():
        check_same(found)


def test_the_command_line_can_use_it(sets):
    told = run_peer(
        *("dali", "-m", "trainstone", "data", "bench", sets["singles"], "--set", "loader.engine=dali", "--json"),
        *("--set", "data.image_size=32", "--threads", "1", "--seconds", "1", "--demand", "10", "-q"),
    )
    assert json.loads(told)["points"][0]["images_per_second"] > 0
