"""RecordIO data sets: byte equality with im2rec.py, reading by MXNet's iterators, and reading im2rec's files."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders.damage import real_data
from support.builders.raw_data_sets import CMYK, SCENES, draw_scenes, label_by_folder, read_all
from support.processes.peers import find_peer, query_peer, run_peer
from trainstone.data.image.decode import decode
from trainstone.data.synthetic.generated import GeneratedSource
from trainstone.formats.recordio import read_list

Make = Callable[..., Path]
FOLDERS = ("--dataset", "folder", "--format", "recordio")
SPLITS = ("train", "val")
ONE_FILE = {"train": 1, "val": 1}


@pytest.fixture(scope="session", autouse=True)
def peer() -> Path:
    return find_peer("mxnet")


def im2rec(*arguments: Path | str) -> None:
    (tool,) = find_peer("mxnet").glob("lib/python*/site-packages/mxnet/tools/im2rec.py")
    run_peer("mxnet", tool, *arguments)


def make_theirs(root: Path, target: Path, chunks: Mapping[str, int] = ONE_FILE) -> Path:
    """Write train and val with im2rec, in the same two steps as the original ResNet instructions."""
    target.mkdir()

    def work(split: str) -> None:
        im2rec("--list", "--recursive", "--chunks", str(chunks[split]), target / split, root / split)
        im2rec("--pass-through", "--num-thread", "2", target / split, root / split)

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, chunks))
    return target


@pytest.fixture(scope="module", params=["shapes", "oddities", "tiny-imagenet-20"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make: Make) -> tuple[Path, ...]:
    name = request.param
    root = real_data(f"classification/{name}") if "-" in name else request.getfixturevalue(name)
    repair = ("--no-repair",) if name == "oddities" else ()  # im2rec does not repair images
    ours = make("imagenet", "--from", root, *FOLDERS, *repair)
    return root, ours, make_theirs(root, tmp_path_factory.mktemp("im2rec") / "theirs")


@pytest.fixture(scope="module")
def mxnet(make: Make, shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pixels = tmp_path_factory.mktemp("mxnet") / "pixels.npy"
    train = make("imagenet", "--from", shapes, *FOLDERS) / "train.rec"
    boxed = make("make", "detect", *SCENES, "--format", "recordio")
    answers = query_peer(
        "mxnet",
        iterate={str(train): {"count": 131, "width": 56, "height": 48, "pixels": str(pixels)}},
        detect={
            str(boxed / f"{split}.rec"): {"count": len(draw_scenes(split)), "width": 120, "height": 90}
            for split in SPLITS
        },
    )
    return {"folder": shapes / "train", "train": train, "boxed": boxed, "pixels": np.load(pixels), **answers}


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".rec", ".idx", ".lst"))


def assert_same_files(ours: Path, theirs: Path) -> None:
    assert names_of(ours) == names_of(theirs)
    for name in names_of(theirs):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_recordio_set_matches_im2rec_bytes(both):
    root, ours, theirs = both
    assert names_of(theirs) == [f"{split}.{kind}" for split in SPLITS for kind in ("idx", "lst", "rec")]
    for split in SPLITS:
        listed = {line.path: line.labels for line in read_list(theirs / f"{split}.lst")}
        assert listed == {name: (label,) for name, label in label_by_folder(root / split).items()}
        assert (theirs / f"{split}.rec").stat().st_size > sum(path.stat().st_size for path in images(root / split))
    assert_same_files(ours, theirs)


def images(folder: Path) -> list[Path]:
    return [folder / name for name in label_by_folder(folder)]


def test_im2rec_set_verifies_and_converts_to_folders(both, tmp_path, trainstone):
    root, _, theirs = both
    checked = trainstone("data", "verify", str(theirs), "--json")
    number = sum(len(label_by_folder(root / split)) for split in SPLITS)
    assert (checked.code, checked.json()["records"]) == (0, number), checked.out
    done = trainstone("data", "convert", str(theirs), str(tmp_path / "back"), "--format", "folder", "--no-repair", "-q")
    assert done.code == 0, done.err
    for split in SPLITS:
        assert label_by_folder(tmp_path / "back" / split) == label_by_folder(root / split)
        for path in images(root / split):
            assert (tmp_path / "back" / split / path.relative_to(root / split)).read_bytes() == path.read_bytes()


def test_recordio_shards_match_im2rec_chunks(shapes, make, tmp_path, trainstone):
    ours = make("imagenet", "--from", shapes, *FOLDERS, "--shards", "4,10")
    theirs = make_theirs(shapes, tmp_path / "theirs", {"train": 4, "val": 10})
    assert_same_files(ours, theirs)
    # 35 images in 10 files: four per file, three in the ninth, none in the last.
    assert [path.name for path in theirs.glob("*.rec") if path.stat().st_size == 0] == ["val_9.rec"]
    checked = trainstone("data", "verify", str(theirs), "--json")
    assert (checked.code, checked.json()["records"]) == (0, 131 + 35)


def test_resized_images_match_im2rec(oddities, make, tmp_path):
    ours = make("imagenet", "--from", oddities, *FOLDERS, "--resize", "40", "--quality", "90")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for split in SPLITS:
        shutil.copy(ours / f"{split}.lst", theirs)
        im2rec("--resize", "40", "--quality", "90", "--num-thread", "2", theirs / split, oddities / split)
    expected, found = read_all(theirs), read_all(ours)
    for split in SPLITS:
        assert [(s.name, s.label) for s in found[split]] == [(s.name, s.label) for s in expected[split]]
        for mine, other in zip(found[split], expected[split], strict=True):
            a, b = decode(mine.image).astype(int), decode(other.image).astype(int)
            assert a.shape == b.shape, mine.name
            assert min(a.shape[:2]) == 40
            # The two libraries convert CMYK differently.
            assert np.abs(a - b).mean() < (2 if mine.name == CMYK else 0.1), mine.name
            assert abs(len(mine.image) - len(other.image)) < 0.05 * len(other.image), mine.name


def test_image_record_iter_reads_labels_and_images_in_order(mxnet):
    (labels,) = mxnet["iterate"].values()
    lines = list(read_list(mxnet["train"].with_suffix(".lst")))
    expected = label_by_folder(mxnet["folder"])
    assert labels == [expected[line.path] for line in lines]
    assert sorted(line.path for line in lines) == sorted(expected)
    for line, found in zip(lines, mxnet["pixels"], strict=True):
        pixels = decode((mxnet["folder"] / line.path).read_bytes()).astype(int)
        assert np.abs(found.transpose(1, 2, 0) - pixels).mean() < 1, line.path


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("iterator", ["ImageDetIter", "ImageDetRecordIter"])
def test_detection_iterators_read_boxes(mxnet, iterator, split):
    found = mxnet["detect"][str(mxnet["boxed"] / f"{split}.rec")][iterator]
    drawn: GeneratedSource = draw_scenes(split)
    expected = [[[*box[:5], 0.0] for box in drawn.read(number).boxes] for number in range(len(drawn))]
    assert len(found) == len(expected)
    assert sum(len(boxes) for boxes in expected) > 2 * len(expected)
    for objects, boxes in zip(found, expected, strict=True):
        assert np.array(objects, np.float32).tolist() == np.array(boxes, np.float32).tolist()
