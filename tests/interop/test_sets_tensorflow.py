"""TFRecord data sets: equality with build_imagenet_data.py, reading by TensorFlow, and reading TensorFlow's files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders.raw_data_sets import CMYK, PNG, SCENES, SYNSETS, draw_scenes, label_by_folder, read_all
from support.processes.peers import digest, find_peer, query_peer
from trainstone.data.image.decode import decode
from trainstone.formats.tfrecord import TFRecordFile, decode_example

Make = Callable[..., Path]
# Files of train and validation -> threads of the original (default 8): with another number of threads some of these
# images would be in other files.
DEFAULT = "24,16"
SHARDS = {DEFAULT: 8, "6,2": 2}
FOLDERS = {"train": "train", "validation": "val"}
REPAIRED = {Path(PNG).name, Path(CMYK).name}
EDGES = ("xmin", "ymin", "xmax", "ymax")


@pytest.fixture(scope="session", autouse=True)
def peer() -> Path:
    return find_peer("tensorflow")


@pytest.fixture(scope="module")
def ours(make: Make, imagenet: Path) -> dict[str, Path]:
    return {
        shards: make("imagenet", "--from", imagenet, "--format", "tfrecord", "--shards", shards) for shards in SHARDS
    }


@pytest.fixture(scope="module")
def theirs(imagenet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the data sets that TensorFlow writes; the first has sorted features, the second does not."""
    root = tmp_path_factory.mktemp("tensorflow")
    jobs = []
    for shards, threads in SHARDS.items():
        counts = dict(zip(FOLDERS, map(int, shards.split(",")), strict=True))
        job = {"source": str(imagenet), "target": str(root / shards), "shards": counts, "threads": threads}
        jobs.append({**job, "sorted": shards == DEFAULT})
    query_peer("tensorflow", build=jobs)
    return {shards: root / shards for shards in SHARDS}


@pytest.fixture(scope="module")
def tensorflow(make: Make, ours: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("pixels")
    folder = ours[DEFAULT]
    scenes = make("make", "detect", *SCENES, "--format", "tfrecord", "--shards", "3,1")
    answers = query_peer(
        "tensorflow",
        glob=[str(folder / f"{split}-*") for split in FOLDERS],
        train={s: {"paths": list_shards(folder, f"{s}-*"), "pixels": str(root / f"{s}.npz")} for s in FOLDERS},
        detect={split: list_shards(scenes, f"{split}.*.tfrecord") for split in ("train", "val")},
    )
    return {"pixels": {split: list(np.load(root / f"{split}.npz").values()) for split in FOLDERS}, **answers}


def list_shards(folder: Path, pattern: str) -> list[str]:
    return sorted(map(str, folder.glob(pattern)))


def read_messages(path: Path) -> Iterator[bytes]:
    with TFRecordFile(path) as file:
        yield from (bytes(file.read(span.offset)) for span in file.spans())


def summarise_records(path: Path) -> list[tuple[Any, ...]]:
    """Return name, label, text, boxes and image of each record of a file; of re-encoded images only the size."""
    records = []
    for message in read_messages(path):
        example = {name: feature.values for name, feature in decode_example(message, str(path)).items()}
        (name,), (image,) = example["image/filename"], example.pop("image/encoded")
        shown = decode(image).shape if name.decode() in REPAIRED else digest(image)
        records.append((name, shown, sorted(example.items())))
    return records


@pytest.mark.parametrize("shards", SHARDS)
def test_tfrecord_set_matches_build_imagenet_data(ours, theirs, shards):
    names = sorted(path.name for path in theirs[shards].iterdir())
    assert sorted(path.name for path in ours[shards].iterdir() if path.is_file()) == ["manifest.json", *names]
    assert len(names) == sum(map(int, shards.split(",")))
    for name in names:
        assert summarise_records(ours[shards] / name) == summarise_records(theirs[shards] / name), name


def test_tfrecords_match_tensorflow_bytes(ours, theirs):
    repaired = 0
    for path in theirs[DEFAULT].iterdir():
        for mine, other in zip(read_messages(ours[DEFAULT] / path.name), read_messages(path), strict=True):
            if any(name.encode() in other for name in REPAIRED):
                repaired += 1
            else:
                assert mine == other
    assert repaired == 2


def test_repaired_images_match_tensorflow_pixels(ours, theirs):
    mine, other = (
        {sample.name: sample.image for sample in read_all(found[DEFAULT])["train"]} for found in (ours, theirs)
    )
    for name in (PNG, CMYK):
        difference = np.abs(decode(mine[name]).astype(int) - decode(other[name]).astype(int))
        assert difference.mean() < 2, name


@pytest.mark.parametrize("shards", SHARDS)
def test_tensorflow_set_verifies_and_converts_to_same_records(ours, theirs, make, shards, trainstone):
    checked = trainstone("data", "verify", str(theirs[shards]), "--json")
    assert (checked.code, checked.json()["records"]) == (0, 207 + 53), checked.out
    summary = trainstone("data", "info", str(theirs[shards]), "--json").json()
    assert [entry["name"] for entry in summary["classes"]] == list(SYNSETS)
    again = make("convert", theirs[shards], "--format", "tfrecord", "--shards", shards)
    for path in theirs[shards].iterdir():
        assert summarise_records(again / path.name) == summarise_records(ours[shards] / path.name)


def test_glob_matches_only_shards(ours, tensorflow):
    for pattern, found in tensorflow["glob"].items():
        split = Path(pattern).name.removesuffix("-*")
        assert sorted(found) == list_shards(ours[DEFAULT], f"{split}-*-of-*")
        assert len(found) == {"train": 24, "validation": 16}[split]


@pytest.mark.parametrize("split", FOLDERS)
def test_tensorflow_reads_imagenet_set(ours, tensorflow, imagenet, split):
    found = tensorflow["train"][split]
    stored = read_all(ours[DEFAULT])[FOLDERS[split]]
    labels = label_by_folder(imagenet / FOLDERS[split])
    boxes = read_boxes(imagenet)
    assert sorted(sample.name for sample in stored) == sorted(labels)
    for record, sample, pixels in zip(found, stored, tensorflow["pixels"][split], strict=True):
        base = Path(sample.name).name
        original = (imagenet / FOLDERS[split] / sample.name).read_bytes()
        image = sample.image if base in REPAIRED else original
        edges = [record[f"image/object/bbox/{edge}"] for edge in EDGES]
        assert record["image/filename"] == base
        assert record["image/encoded"] == digest(image)
        assert record["image/class/label"] == labels[sample.name] + 1
        assert record["image/class/text"] == SYNSETS[Path(sample.name).parent.name]
        assert np.array(edges, np.float32).T.tolist() == np.array(boxes.get(base, []), np.float32).tolist()
        assert np.abs(pixels.astype(int) - decode(image).astype(int)).max() <= 1, sample.name


def read_boxes(imagenet: Path) -> dict[str, list[list[float]]]:
    boxes: dict[str, list[list[float]]] = {}
    for line in (imagenet / "imagenet_2012_bounding_boxes.csv").read_text().splitlines():
        name, *edges = line.split(",")
        boxes.setdefault(name, []).append([float(edge) for edge in edges])
    return boxes


@pytest.mark.parametrize("split", ["train", "val"])
def test_tensorflow_reads_detection_set(tensorflow, split):
    found = tensorflow["detect"][split]
    drawn = draw_scenes(split)
    names = [class_name.name for class_name in drawn.classes]
    for number, record in enumerate(found):
        sample = drawn.read(number)
        edges = [edge for box in sample.boxes for edge in box[1:5]]
        assert record.pop("image/object/bbox") == np.array(edges, np.float32).tolist()
        assert record == {
            "image/encoded": digest(sample.image),
            "image/fname": sample.name,
            "image/id": number + 1,
            "image/shape": [90, 120, 3],
            "image/object/label": [box.label + 1 for box in sample.boxes],
            "image/object/name": [names[box.label] for box in sample.boxes],
            "image/object/is_crowd": [0] * len(sample.boxes),
        }
    assert len(found) == len(drawn)
