import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from made_archives import make_jpeg, make_tar, write_files
from trainstone.data.raw.imagenet import find_imagenet
from trainstone.data.sample import Box, ClassName, DataSet
from trainstone.errors import DataError

SYNSETS = ["n01440764", "n01443537", "n02099601"]
TEXTS = {"n01440764": "tench, Tinca tinca", "n01443537": "goldfish", "n02099601": "golden retriever"}
# The numbers of the devkit are in another order than the synsets.
IDS = {"n01440764": 3, "n01443537": 1, "n02099601": 2}
VAL = ["n02099601", "n01440764", "n01443537", "n01440764"]

TRAIN_PICTURES = {s: {f"{s}_{i}.JPEG": make_jpeg(n * 10 + i) for i in (10, 9)} for n, s in enumerate(SYNSETS)}
VAL_PICTURES = {f"ILSVRC2012_val_{i:08d}.JPEG": make_jpeg(100 + i) for i in range(1, 5)}
TRAIN = [(f"{s}/{file}", label) for label, s in enumerate(SYNSETS) for file in sorted(TRAIN_PICTURES[s])]
VAL_CONTENTS = [
    ("n01440764/ILSVRC2012_val_00000002.JPEG", 0),
    ("n01440764/ILSVRC2012_val_00000004.JPEG", 0),
    ("n01443537/ILSVRC2012_val_00000003.JPEG", 1),
    ("n02099601/ILSVRC2012_val_00000001.JPEG", 2),
]


def devkit() -> dict[str, bytes]:
    made = np.zeros((4, 1), dtype=[(n, object) for n in ("ILSVRC2012_ID", "WNID", "words", "num_children")])
    for row, synset in enumerate(SYNSETS):
        made[row, 0] = (float(IDS[synset]), synset, TEXTS[synset], 0.0)
    made[3, 0] = (1001.0, "n00001740", "entity", 3.0)
    out = io.BytesIO()
    scipy.io.savemat(out, {"synsets": made}, do_compression=True)
    truth = "".join(f"{IDS[synset]}\n" for synset in VAL)
    folder = "ILSVRC2012_devkit_t12"
    return {
        f"{folder}/readme.txt": b"hello",
        f"{folder}/data/meta.mat": out.getvalue(),
        f"{folder}/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }


def inner_tars() -> dict[str, bytes]:
    return {f"{synset}.tar": make_tar(files) for synset, files in reversed(TRAIN_PICTURES.items())}


IN_FOLDERS = {f"{s}/{file}": c for s, files in TRAIN_PICTURES.items() for file, c in files.items()}
TRAIN_SHAPES = {
    "tar": {"ILSVRC2012_img_train.tar": make_tar(inner_tars())},
    "folders": {f"train/{name}": content for name, content in IN_FOLDERS.items()},
    "tars in a folder": {f"train/{name}": content for name, content in inner_tars().items()},
    "both": {f"train/{SYNSETS[0]}/{file}": c for file, c in TRAIN_PICTURES[SYNSETS[0]].items()}
    | {f"train/{name}": content for name, content in inner_tars().items() if SYNSETS[0] not in name},
    "in capitals": {"ilsvrc2012_IMG_train.TAR": make_tar(inner_tars())},
    "compressed": {"ILSVRC2012_img_train.tar.gz": gzip.compress(make_tar(inner_tars()))},
    "one deeper": {"archives/ILSVRC2012_img_train.tar": make_tar(inner_tars())},
    "Kaggle": {f"ILSVRC/Data/CLS-LOC/train/{name}": content for name, content in IN_FOLDERS.items()},
    "directly in the path": IN_FOLDERS,
    "tar of folders": {"ILSVRC2012_img_train.tar": make_tar({f"train/{name}": c for name, c in IN_FOLDERS.items()})},
}
VAL_SHAPES = {
    "tar": {"ILSVRC2012_img_val.tar": make_tar(VAL_PICTURES)},
    "tar of a folder": {"ILSVRC2012_img_val.tar": make_tar({f"./val/{name}": c for name, c in VAL_PICTURES.items()})},
    "flat": {f"val/{name}": content for name, content in VAL_PICTURES.items()},
    "Kaggle": {f"ILSVRC/Data/CLS-LOC/val/{name}": content for name, content in VAL_PICTURES.items()},
}
LABEL_FILES = {
    "devkit": {"ILSVRC2012_devkit_t12.tar.gz": gzip.compress(make_tar(devkit()))},
    "extracted devkit": devkit(),
    "list": {"imagenet_2012_validation_synset_labels.txt": "".join(f"{synset}\n" for synset in VAL).encode()},
    "Kaggle": {
        "LOC_val_solution.csv": b"ImageId,PredictionString\n"
        + b"".join(
            f"ILSVRC2012_val_{i:08d},{VAL[i - 1]} 1 2 3 4 {VAL[i - 1]} 5 6 7 8 \n".encode() for i in (3, 1, 4, 2)
        )
    },
    "script": {
        "valprep.sh": b"#!/bin/sh\nmkdir -p n01440764\n"
        + b"".join(f"mv ILSVRC2012_val_{i:08d}.JPEG {VAL[i - 1]}/\n".encode() for i in (4, 3, 2, 1))
    },
}


def contents(data: DataSet) -> dict[str, list[tuple[str, int]]]:
    found = {}
    for split in data.splits:
        samples = [split.source.read(i) for i in range(len(split.source))]
        for sample in samples:
            folder, file = sample.name.split("/")
            assert sample.image == (VAL_PICTURES[file] if split.name == "val" else TRAIN_PICTURES[folder][file])
        found[split.name] = [(sample.name, sample.label) for sample in samples]
    return found


def find(path: Path, **options: Path) -> DataSet:
    return find_imagenet(path, work=path.parent / "work", **options)


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("shape", TRAIN_SHAPES)
def test_train_is_found_in_every_shape(root, shape, caplog):
    write_files(root, TRAIN_SHAPES[shape])
    before = sorted(root.rglob("*"))
    data = find(root)
    assert (data.name, data.kind) == ("imagenet", "classify")
    assert data.classes == [ClassName(synset) for synset in SYNSETS]
    assert contents(data) == {"train": TRAIN}
    assert sorted(root.rglob("*")) == before
    assert "no pictures for val" in caplog.text


@pytest.mark.parametrize("labels", LABEL_FILES)
@pytest.mark.parametrize("shape", VAL_SHAPES)
def test_val_is_found_in_every_shape_with_every_kind_of_labels(root, shape, labels):
    write_files(root, TRAIN_SHAPES["tar"] | VAL_SHAPES[shape] | LABEL_FILES[labels])
    assert contents(find(root)) == {"train": TRAIN, "val": VAL_CONTENTS}


def test_val_in_folders_needs_no_labels(root):
    write_files(root, {f"val/{name}": VAL_PICTURES[name.split("/")[1]] for name, _ in VAL_CONTENTS})
    assert contents(find(root)) == {"val": VAL_CONTENTS}


@pytest.mark.parametrize("labels", LABEL_FILES)
def test_given_labels_win_over_those_found(root, labels):
    write_files(root, VAL_SHAPES["tar"] | {"imagenet_2012_validation_synset_labels.txt": b"n09999999\n" * 4})
    write_files(root.parent / "elsewhere", LABEL_FILES[labels])
    name = next(iter(LABEL_FILES[labels])).split("/")[0]
    assert contents(find(root, val_labels=root.parent / "elsewhere" / name)) == {"val": VAL_CONTENTS}


def test_a_picture_without_a_label_is_named(root):
    write_files(root, VAL_SHAPES["tar"] | {"imagenet_2012_validation_synset_labels.txt": b"n01440764\n" * 3})
    with pytest.raises(DataError, match=r"has 3 labels, and none for ILSVRC2012_val_00000004\.JPEG"):
        find(root)


def test_labels_go_by_the_number_of_a_picture_not_by_its_place(root, caplog):
    write_files(root, LABEL_FILES["list"])
    some = {name: c for name, c in VAL_PICTURES.items() if not name.endswith("1.JPEG")}
    write_files(root, {"ILSVRC2012_img_val.tar": make_tar(some)})
    assert contents(find(root)) == {"val": [(name, min(label, 1)) for name, label in VAL_CONTENTS[:3]]}
    assert "3 of 4 validation pictures are there" in caplog.text


def test_val_pictures_of_classes_that_train_lacks_are_left_out_and_told(root, caplog):
    write_files(root, VAL_SHAPES["tar"] | LABEL_FILES["list"])
    write_files(root, {name: c for name, c in TRAIN_SHAPES["folders"].items() if "n02099601" not in name})
    found = contents(find(root))
    assert found["val"] == VAL_CONTENTS[:3]
    assert "1 image of classes that train lacks are dropped (n02099601 ...)" in caplog.text


@pytest.mark.parametrize(
    ("name", "gap"), [("LOC_synset_mapping.txt", " "), ("synset_words.txt", " "), ("imagenet_metadata.txt", "\t")]
)
def test_classes_get_their_words(root, name, gap):
    content = "".join(f"{synset}{gap}{text}\n" for synset, text in TEXTS.items()) + f"n00000001{gap}x\n"
    write_files(root, TRAIN_SHAPES["tar"] | {name: content.encode()})
    assert find(root).classes == [ClassName(synset, TEXTS[synset]) for synset in SYNSETS]


def test_the_devkit_has_words_too(root):
    write_files(root, TRAIN_SHAPES["tar"] | LABEL_FILES["devkit"])
    assert find(root).classes == [ClassName(synset, TEXTS[synset]) for synset in SYNSETS]


XML = (
    b"<annotation><size><width>100</width><height>50</height></size><object><name>x</name><bndbox>"
    b"<xmin>10</xmin><ymin>10</ymin><xmax>90</xmax><ymax>50</ymax></bndbox></object></annotation>"
)
TRAIN_XML, VAL_XML = "n01443537/n01443537_10.xml", "val/ILSVRC2012_val_00000001.xml"


@pytest.mark.parametrize(
    "files",
    [
        {f"Annotation/{TRAIN_XML}": XML, f"Annotation/{VAL_XML}": XML},
        {f"bbox/{TRAIN_XML}": XML, "ILSVRC2012_bbox_val_v3.tgz": gzip.compress(make_tar({VAL_XML: XML}))},
        {
            "ILSVRC2012_bbox_train_v2.tar.gz": gzip.compress(make_tar({TRAIN_XML: XML})),
            "ILSVRC2012_bbox_val_v3.tgz": gzip.compress(make_tar({VAL_XML: XML})),
            "imagenet_2012_bounding_boxes.csv": b"",
        },
        {f"ILSVRC/Annotations/CLS-LOC/train/{TRAIN_XML}": XML, f"ILSVRC/Annotations/CLS-LOC/{VAL_XML}": XML},
        {
            "imagenet_2012_bounding_boxes.csv": b"n01443537_10.JPEG,0.1,0.2,0.9,1.0\n"
            b"ILSVRC2012_val_00000001.JPEG,0.1,0.2,0.9,1.0\n"
        },
    ],
)
def test_boxes_are_found(root, files):
    write_files(root, TRAIN_SHAPES["tar"] | VAL_SHAPES["tar"] | LABEL_FILES["list"] | files)
    train, val = (split.source for split in find(root).splits)
    boxes = {train.name(i): train.read(i).boxes for i in range(len(train))}
    assert boxes.pop("n01443537/n01443537_10.JPEG") == (Box(1, 0.1, 0.2, 0.9, 1.0),)
    assert set(boxes.values()) == {()}
    assert [val.read(i).boxes for i in range(4)] == [(), (), (), (Box(2, 0.1, 0.2, 0.9, 1.0),)]


def test_given_boxes_win(root):
    write_files(root, TRAIN_SHAPES["tar"] | {"imagenet_2012_bounding_boxes.csv": b"n01443537_10.JPEG,0,0,1,1\n"})
    given = root.parent / "mine.csv"
    given.write_text("n01440764_9.JPEG,0,0,0.5,0.5\n")
    train = find(root, boxes=given).splits[0].source
    assert [len(train.read(i).boxes) for i in range(6)] == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.txt", b"n01440764\ngoldfish\n", "line 2: 'goldfish' is no synset"),
        ("labels.txt", b"", "empty"),
        ("labels.csv", b"ImageId,PredictionString\nILSVRC2012_val_1,n01440764 1 2 3 4\n", "line 2"),
        ("labels.csv", b"ImageId,PredictionString\nILSVRC2012_val_00000001\n", "line 2"),
        (
            "kit.tar.gz",
            gzip.compress(make_tar({"data/x": b""}), mtime=0),
            r"meta\.mat and ILSVRC2012_validation_ground_truth\.txt",
        ),
        (
            "kit.tar.gz",
            gzip.compress(make_tar(devkit() | {"y/ILSVRC2012_validation_ground_truth.txt": b"1\n1001\n"}), mtime=0),
            r"line 2: '1001' is no class; 1 to 1000 are",
        ),
        (
            "kit.tar.gz",
            gzip.compress(make_tar(devkit() | {"y/meta.mat": os.urandom(300)}), mtime=0),
            r"meta\.mat",
        ),
    ],
)
def test_damaged_labels_are_refused_by_place(root, name, content, message):
    write_files(root, VAL_SHAPES["tar"])
    write_files(root.parent, {name: content})
    with pytest.raises(DataError, match=message):
        find(root, val_labels=root.parent / name)


def test_strange_pictures_are_left_out_and_told(root, caplog):
    strange = ("train/stray.JPEG", "train/n01440764/._n01440764_1.JPEG", "train/backup/n01440764/n01440764_99.JPEG")
    write_files(root, TRAIN_SHAPES["folders"] | dict.fromkeys(strange, make_jpeg(1)))
    assert contents(find(root)) == {"train": TRAIN}
    assert "1 picture in no synset's folder left out" in caplog.text
