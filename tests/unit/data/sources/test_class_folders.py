"""Tests of data sets in class folders, Tiny-ImageNet and ImageNetV2."""

import gzip
import io
import os
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from support.builders.archives import make_jpeg, make_tar, write_files
from support.builders.damage import real_data
from trainstone.data.sample import Box, ClassName, DataSet
from trainstone.data.sources.class_folders import find_class_folders, find_imagenetv2, find_tiny_imagenet
from trainstone.errors import DataError


def make(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(make_jpeg(number))
    return root


def contents(data: DataSet) -> dict[str, list[tuple[str, int]]]:
    found = {}
    for split in data.splits:
        samples = [split.source.read(i) for i in range(len(split.source))]
        assert all(sample.image.startswith(b"\xff\xd8") for sample in samples)
        found[split.name] = [(sample.name, sample.label) for sample in samples]
    return found


def list_like_im2rec(root: Path) -> list[tuple[str, int]]:
    """Return names and labels as im2rec.py does: sorted folders and files, one label per folder with images."""
    numbers: dict[str, int] = {}
    found = []
    for path, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        for file in sorted(files):
            if file.lower().endswith((".jpg", ".jpeg", ".png")):
                numbers.setdefault(path, len(numbers))
                found.append((Path(path, file).relative_to(root).as_posix(), numbers[path]))
    return found


def list_train(root: Path) -> list[tuple[str, int]]:
    return contents(find_class_folders(root))["train"]


def test_class_folders_order_matches_im2rec(tmp_path, caplog):
    make(tmp_path / "elsewhere", "1.jpg")
    names = ["b/2.jpg", "b/10.JPG", "a b/1.png", "a/x.JPEG", "a/inner/y.jpeg", "a-b/z.jpg", "B/q.jpg", "c/note.txt"]
    make(tmp_path / "root", *names)
    (tmp_path / "root/empty").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
    assert list_train(tmp_path / "root") == list_like_im2rec(tmp_path / "root")
    assert [name for name, _ in find_class_folders(tmp_path / "root").classes] == [
        "B", "a", "a/inner", "a b", "a-b", "b", "link",
    ]  # fmt: skip
    before = list_train(tmp_path / "root")
    make(tmp_path / "root", "a/._x.JPEG", "a/.2.jpg", ".cache/3.jpg", "__MACOSX/a/4.jpg")  # hidden files are ignored
    (tmp_path / "root/b/loop").symlink_to(tmp_path / "root")
    (tmp_path / "root/b/broken.jpg").symlink_to(tmp_path / "nowhere")
    assert list_train(tmp_path / "root") == before
    assert "a link to one of its parent folders" in caplog.text


def test_numeric_class_folders_are_sorted_as_numbers(tmp_path):
    make(tmp_path, "10/a.jpg", "9/b.jpg", "2/c.jpg")
    assert list_train(tmp_path) == [("2/c.jpg", 0), ("9/b.jpg", 1), ("10/a.jpg", 2)]
    make(tmp_path, "x/d.jpg")
    assert [name for name, _ in find_class_folders(tmp_path).classes] == ["10", "2", "9", "x"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["stray.jpg", "a/1.jpg"], r"stray\.jpg is not in a class folder"),
        (["a/note.txt"], "no images"),
        (["train/a/1.jpg", "val/a/1.jpg", "val/zebra/2.jpg"], "unknown class 'zebra'; it is not among the 1 of train"),
    ],
)
def test_find_class_folders_rejects_invalid_layout(tmp_path, names, message):
    make(tmp_path, *names)
    with pytest.raises(DataError, match=message):
        find_class_folders(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        find_class_folders(tmp_path / "none")


@pytest.mark.parametrize("val", ["val", "valid", "validation", "test", "Val"])
def test_train_and_val_share_labels(tmp_path, val):
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", f"{val}/c/9.jpg", f"{val}/b/8.jpg")
    data = find_class_folders(tmp_path)
    assert data.kind == "classify"
    assert data.classes == [ClassName("a"), ClassName("b"), ClassName("c")]
    assert contents(data) == {
        "train": [("a/1.jpg", 0), ("b/1.jpg", 1), ("c/1.jpg", 2)],
        "val": [("b/8.jpg", 1), ("c/9.jpg", 2)],
    }


TINY = {
    "wnids.txt": b"n02\nn01\n",
    "words.txt": b"n01\tgoldfish, Carassius\nn02\tsnail\nn03\tother\n",
    "train/n02/images/n02_0.JPEG": make_jpeg(1),
    "train/n01/images/n01_1.JPEG": make_jpeg(2),
    "train/n01/images/n01_0.JPEG": make_jpeg(3),
    "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t16\t32\t63\nn01_1.JPEG\t5\t5\t5\t9\n",
    "train/n02/n02_boxes.txt": b"n02_0.JPEG\t8\t8\t64\t64\n",
    "val/images/val_0.JPEG": make_jpeg(4),
    "val/images/val_1.JPEG": make_jpeg(5),
    "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t32\t32\nval_1.JPEG\tn01\t16\t0\t64\t64\n",
    "test/images/test_0.JPEG": make_jpeg(6),
}
TINY_CONTENTS = {
    "train": [("n01/n01_0.JPEG", 0), ("n01/n01_1.JPEG", 0), ("n02/n02_0.JPEG", 1)],
    "val": [("n01/val_1.JPEG", 0), ("n02/val_0.JPEG", 1)],
}


@pytest.fixture(params=["folder", "parent", "zip", "folder with zip"])
def tiny(request, tmp_path) -> Path:
    if "zip" not in request.param:
        write_files(tmp_path / "tiny-imagenet-200", TINY)
        return tmp_path / "tiny-imagenet-200" if request.param == "folder" else tmp_path
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in TINY.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return tmp_path / "tiny-imagenet-200.zip" if request.param == "zip" else tmp_path


def test_find_tiny_imagenet_in_every_layout(tiny):
    before = sorted(tiny.parent.rglob("*"))
    data = find_tiny_imagenet(tiny)
    assert contents(data) == TINY_CONTENTS
    assert data.classes == [ClassName("n01", "goldfish, Carassius"), ClassName("n02", "snail")]
    assert data.name == "tiny-imagenet"
    train, val = (split.source for split in data.splits)
    assert train.read(0).boxes == (Box(0, 0.0, 0.25, 0.5, 63 / 64),)
    assert train.read(1).boxes == ()
    assert val.read(0).boxes == (Box(0, 0.25, 0.0, 1.0, 1.0),)
    assert sorted(tiny.parent.rglob("*")) == before


def test_find_tiny_imagenet_with_val_in_class_folders(tmp_path):
    moved = {
        "train/n01/n01_0.JPEG": make_jpeg(1),
        "train/n02/n02_0.JPEG": make_jpeg(2),
        "val/n02/val_0.JPEG": make_jpeg(3),
        "classes.txt": b"n01\tgoldfish\nn02\tsnail\n",
        "val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t32\t32\n",
    }
    data = find_tiny_imagenet(write_files(tmp_path, moved))
    assert contents(data)["val"] == [("n02/val_0.JPEG", 1)]
    assert data.splits[1].source.read(0).boxes == (Box(1, 0.0, 0.0, 0.5, 0.5),)
    assert data.classes[0] == ClassName("n01", "goldfish")


def test_find_tiny_imagenet_reports_validation_image_without_label(tmp_path):
    write_files(tmp_path, TINY | {"val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\n"})
    with pytest.raises(DataError, match=r"val_1\.JPEG of Tiny-ImageNet is not in val_annotations\.txt"):
        find_tiny_imagenet(tmp_path)
    with pytest.raises(DataError, match=r"expected train/ and val/, or tiny-imagenet-200\.zip"):
        find_tiny_imagenet(tmp_path / "wnids.txt" / "x")


def test_find_tiny_imagenet_on_real_data():
    data = find_tiny_imagenet(real_data("classification/tiny-imagenet-20"))
    train, val = (split.source for split in data.splits)
    assert (len(train), len(val), len(data.classes)) == (4000, 1000, 20)
    assert data.classes[0] == ClassName("n01443537", "goldfish, Carassius auratus")
    sample = val.read(999)
    assert sample.name.startswith(data.classes[19].name)
    assert sample.label == 19
    assert len(sample.boxes) == 1
    assert Image.open(io.BytesIO(sample.image)).size == (64, 64)
    plain = find_class_folders(real_data("classification/tiny-imagenet-20"))
    assert [plain.splits[0].source.name(i) for i in range(4000)] == [train.name(i) for i in range(4000)]


V2_FILES = {
    "imagenetv2-x/10/a.jpeg": make_jpeg(1),
    "imagenetv2-x/9/b.jpeg": make_jpeg(2),
    "imagenetv2-x/999/c.jpeg": make_jpeg(3),
}
V2_CONTENTS = {"val": [("9/b.jpeg", 9), ("10/a.jpeg", 10), ("999/c.jpeg", 999)]}


@pytest.mark.parametrize("shape", ["imagenetv2-x", ".", "imagenetv2.tar", "imagenetv2.tar.gz", "folder of tar"])
def test_find_imagenetv2_in_every_layout(tmp_path, shape):
    path = tmp_path / "data"
    path.mkdir()
    if "tar" in shape:
        packed = make_tar(V2_FILES) if shape != "imagenetv2.tar.gz" else gzip.compress(make_tar(V2_FILES))
        name = "imagenetv2.tar" if shape == "folder of tar" else shape
        (path / name).write_bytes(packed)
        path = path if shape == "folder of tar" else path / name
    else:
        path = write_files(path, V2_FILES) / shape
    data = find_imagenetv2(path, work=tmp_path / "work")
    assert contents(data) == V2_CONTENTS
    assert [name for name, _ in data.classes] == [str(i) for i in range(1000)]
    assert (tmp_path / "work").exists() == (shape == "imagenetv2.tar.gz")
    assert contents(find_imagenetv2(path, work=tmp_path / "work")) == V2_CONTENTS


def test_find_imagenetv2_rejects_other_data(tmp_path):
    work = tmp_path / "work"
    with pytest.raises(DataError, match="no such file"):
        find_imagenetv2(tmp_path / "none", work=work)
    with pytest.raises(DataError, match="no images of ImageNetV2"):
        find_imagenetv2(make(tmp_path / "a", "cat/1.jpg"), work=work)
    with pytest.raises(DataError, match="invalid class folder 1000"):
        find_imagenetv2(make(tmp_path / "b", "1000/1.jpg"), work=work)
    with pytest.raises(DataError, match="several variants of ImageNetV2: one, two"):
        find_imagenetv2(make(tmp_path / "c", "one/0/1.jpg", "two/0/1.jpg"), work=work)
