"""Prepared data sets and their index files read by DALI: TFRecord, RecordIO, WebDataset, COCO."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders.raw_data_sets import SCENES, draw_scenes, label_by_folder, read_all
from support.processes.peers import digest, find_peer, query_peer
from trainstone.data.sample import Sample

Make = Callable[..., Path]
SPLITS = ("train", "val")
EDGES = ("xmin", "ymin", "xmax", "ymax")
CLASSIFY = {
    "image/encoded": "bytes",
    "image/class/label": "int64",
    **{f"image/object/bbox/{edge}": "float" for edge in EDGES},
}
DETECT = {
    "image/encoded": "bytes",
    "image/id": "int64",
    "image/shape": "int64",
    "image/object/label": "int64",
    "image/object/bbox": "float",
}


@pytest.fixture(scope="session", autouse=True)
def peer() -> Path:
    return find_peer("dali")


@pytest.fixture(scope="module")
def sets(make: Make, imagenet: Path, oddities: Path) -> dict[str, Path]:
    boxed = ("--from", imagenet, "--shards", "8,2")
    return {
        "tfrecord": make("imagenet", *boxed, "--format", "tfrecord"),
        "wds": make("imagenet", *boxed, "--format", "wds"),
        "mxnet": make("imagenet", "--from", oddities, "--dataset", "folder", "--format", "recordio"),
    }


@pytest.fixture(scope="module")
def folders(make: Make, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders in COCO's layout from `data make` and from `data coco`."""
    raw = tmp_path_factory.mktemp("coco")
    (raw / "annotations").mkdir()
    for split in SPLITS:
        (raw / f"{split}2017").symlink_to(scenes / split)
        (raw / f"annotations/instances_{split}2017.json").symlink_to(scenes / f"annotations/instances_{split}.json")
    return {"made": scenes, "prepared": make("coco", "--from", raw)}


def list_coco(folders: dict[str, Path]) -> dict[str, tuple[Path, Path]]:
    """Return name -> annotation file and image folder."""
    made, prepared = folders["made"], folders["prepared"]
    return {
        **{f"made {s}": (made / f"annotations/instances_{s}.json", made / s) for s in SPLITS},
        **{
            f"{kind} {s}": (prepared / f"annotations/{kind}_{s}2017.json", prepared / f"{s}2017")
            for s in SPLITS
            for kind in ("instances", "bbox_only_instances")
        },
    }


@pytest.fixture(scope="module")
def dali(sets: dict[str, Path], folders: dict[str, Path], make: Make) -> dict[str, Any]:
    jobs: dict[str, Any] = {}
    detect = {form: make("make", "detect", *SCENES, "--format", form) for form in ("tfrecord", "recordio")}
    for split, prefix in (("train", "train"), ("val", "validation")):
        counts = {name: len(read_all(path)[split]) for name, path in sets.items()}
        shards = sorted(sets["tfrecord"].glob(f"{prefix}-*"))
        index = [path.parent / f"idx/{path.name}.idx" for path in shards]
        jobs[f"tfrecord {split}"] = build_job("tfrecord", shards, index, counts["tfrecord"], features=CLASSIFY)
        # This reader takes a single file with a single index.
        jobs[f"mxnet {split}"] = build_job("mxnet", *with_index(sets["mxnet"], f"{split}.rec"), counts["mxnet"])
        tars = with_index(sets["wds"], f"{split}-*.tar")
        jobs[f"wds {split}"] = build_job("webdataset", *tars, counts["wds"], extensions=["jpg", "cls", "json"])
        drawn = len(draw_scenes(split))
        found = with_index(detect["tfrecord"], f"{split}.*.tfrecord")
        jobs[f"detect tfrecord {split}"] = build_job("tfrecord", *found, drawn, features=DETECT)
        jobs[f"detect mxnet {split}"] = build_job("mxnet", *with_index(detect["recordio"], f"{split}.rec"), drawn)
    for name, (annotations, images) in list_coco(folders).items():
        count = len(draw_scenes(name.split()[-1]))
        jobs[name] = ("coco", {"path": str(images), "annotations": str(annotations), "count": count})
    return query_peer("dali", **jobs)


def build_job(reader: str, paths: Sequence[Path], indexes: Sequence[Path], count: int, **more: Any) -> tuple[str, Any]:
    assert all(path.is_file() for path in (*paths, *indexes))
    return reader, {"path": [*map(str, paths)], "index": [*map(str, indexes)], "count": count, **more}


def with_index(folder: Path, pattern: str) -> tuple[list[Path], list[Path]]:
    paths = sorted(folder.glob(pattern))
    return paths, [path.with_suffix(".idx") for path in paths]


def check_labels(samples: Sequence[Sample], root: Path) -> Sequence[Sample]:
    """Check that the samples have the names and labels of the class folders."""
    assert {sample.name: sample.label for sample in samples} == label_by_folder(root)
    return samples


def as_floats(values: Sequence[float]) -> list[float]:
    return np.array(values, np.float32).tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_dali_reads_tfrecord_with_index(dali, sets, imagenet, split):
    found = dali[f"tfrecord {split}"]
    samples = check_labels(read_all(sets["tfrecord"])[split], imagenet / split)
    assert found["image/encoded"] == [digest(sample.image) for sample in samples]
    assert found["image/class/label"] == [[sample.label + 1] for sample in samples]
    for place, edge in enumerate(EDGES, start=1):
        expected = [as_floats([box[place] for box in sample.boxes]) for sample in samples]
        assert found[f"image/object/bbox/{edge}"] == expected
    assert sum(len(sample.boxes) for sample in samples) >= len(samples) - 10


@pytest.mark.parametrize("split", SPLITS)
def test_dali_reads_recordio_with_index(dali, sets, oddities, split):
    samples = check_labels(read_all(sets["mxnet"])[split], oddities / split)
    expected = [{"labels": [float(sample.label)], "image": digest(sample.image)} for sample in samples]
    assert dali[f"mxnet {split}"] == expected


@pytest.mark.parametrize("split", SPLITS)
def test_dali_reads_wds_with_index(dali, sets, imagenet, split):
    samples = check_labels(read_all(sets["wds"])[split], imagenet / split)
    found = dali[f"wds {split}"]
    assert [(parts["jpg"], parts["cls"]) for parts in found] == [
        (digest(sample.image), digest(str(sample.label).encode())) for sample in samples
    ]


@pytest.mark.parametrize("split", SPLITS)
def test_dali_reads_detection_tfrecord_and_recordio(dali, split):
    drawn = [draw_scenes(split).read(number) for number in range(len(draw_scenes(split)))]
    images = [digest(sample.image) for sample in drawn]
    found = dali[f"detect tfrecord {split}"]
    assert found["image/encoded"] == images
    assert found["image/id"] == [[number + 1] for number in range(len(drawn))]
    assert found["image/shape"] == [[90, 120, 3]] * len(drawn)
    assert found["image/object/label"] == [[box.label + 1 for box in sample.boxes] for sample in drawn]
    edges = [as_floats([edge for box in sample.boxes for edge in box[1:5]]) for sample in drawn]
    assert found["image/object/bbox"] == edges
    vectors = [as_floats([4, 6, 120, 90, *(n for b in sample.boxes for n in (*b[:5], 0))]) for sample in drawn]
    assert dali[f"detect mxnet {split}"] == [{"labels": v, "image": i} for v, i in zip(vectors, images, strict=True)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("annotations", ["made", "instances", "bbox_only_instances"])
def test_dali_reads_coco_annotations(dali, annotations, split):
    found = {record["id"]: record for record in dali[f"{annotations} {split}"]}
    drawn = draw_scenes(split)
    assert len(found) == len(drawn)
    for number in range(len(drawn)):
        sample, record = drawn.read(number), found[number + 1]
        assert record["image"] == digest(sample.image)
        assert record["labels"] == [box.label + 1 for box in sample.boxes]
        assert np.abs(np.array(record["boxes"]) - [box[1:5] for box in sample.boxes]).max() < 1e-6
