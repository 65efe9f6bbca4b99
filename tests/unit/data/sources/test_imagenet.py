"""Tests of finding ImageNet: images, labels, class names and boxes in every published layout."""

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from support.builders.archives import make_jpeg, make_tar, write_files
from trainstone.data.sample import Box, ClassName, DataSet, Edges
from trainstone.data.sources.imagenet import find_imagenet, read_box_xml, read_boxes
from trainstone.errors import DataError

SYNSETS = ["n01440764", "n01443537", "n02099601"]
TEXTS = {"n01440764": "tench, Tinca tinca", "n01443537": "goldfish", "n02099601": "golden retriever"}
# The devkit's class ids are in another order than the synsets.
IDS = {"n01440764": 3, "n01443537": 1, "n02099601": 2}
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
VAL = ["n02099601", "n01440764", "n01443537", "n01440764"]

TRAIN_IMAGES = {s: {f"{s}_{i}.JPEG": make_jpeg(n * 10 + i) for i in (10, 9)} for n, s in enumerate(SYNSETS)}
VAL_IMAGES = {f"ILSVRC2012_val_{i:08d}.JPEG": make_jpeg(100 + i) for i in range(1, 5)}
TRAIN = [(f"{s}/{file}", label) for label, s in enumerate(SYNSETS) for file in sorted(TRAIN_IMAGES[s])]
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
        f"{folder}/data/{TRUTH}": truth.encode(),
    }


def inner_tars() -> dict[str, bytes]:
    return {f"{synset}.tar": make_tar(files) for synset, files in reversed(TRAIN_IMAGES.items())}


IN_FOLDERS = {f"{s}/{file}": c for s, files in TRAIN_IMAGES.items() for file, c in files.items()}
TRAIN_LAYOUTS = {
    "tar": {"ILSVRC2012_img_train.tar": make_tar(inner_tars())},
    "folders": {f"train/{name}": content for name, content in IN_FOLDERS.items()},
    "tars in a folder": {f"train/{name}": content for name, content in inner_tars().items()},
    "both": {f"train/{SYNSETS[0]}/{file}": c for file, c in TRAIN_IMAGES[SYNSETS[0]].items()}
    | {f"train/{name}": content for name, content in inner_tars().items() if SYNSETS[0] not in name},
    "in capitals": {"ilsvrc2012_IMG_train.TAR": make_tar(inner_tars())},
    "compressed": {"ILSVRC2012_img_train.tar.gz": gzip.compress(make_tar(inner_tars()))},
    "one deeper": {"archives/ILSVRC2012_img_train.tar": make_tar(inner_tars())},
    "Kaggle": {f"ILSVRC/Data/CLS-LOC/train/{name}": content for name, content in IN_FOLDERS.items()},
    "directly in the path": IN_FOLDERS,
    "tar of folders": {"ILSVRC2012_img_train.tar": make_tar({f"train/{name}": c for name, c in IN_FOLDERS.items()})},
}
VAL_LAYOUTS = {
    "tar": {"ILSVRC2012_img_val.tar": make_tar(VAL_IMAGES)},
    "tar of a folder": {"ILSVRC2012_img_val.tar": make_tar({f"./val/{name}": c for name, c in VAL_IMAGES.items()})},
    "flat": {f"val/{name}": content for name, content in VAL_IMAGES.items()},
    "Kaggle": {f"ILSVRC/Data/CLS-LOC/val/{name}": content for name, content in VAL_IMAGES.items()},
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
            assert sample.image == (VAL_IMAGES[file] if split.name == "val" else TRAIN_IMAGES[folder][file])
        found[split.name] = [(sample.name, sample.label) for sample in samples]
    return found


def find(path: Path, **options: Path) -> DataSet:
    return find_imagenet(path, work=path.parent / "work", **options)


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("layout", TRAIN_LAYOUTS)
def test_find_train_in_every_layout(root, layout, caplog):
    write_files(root, TRAIN_LAYOUTS[layout])
    before = sorted(root.rglob("*"))
    data = find(root)
    assert (data.name, data.kind) == ("imagenet", "classify")
    assert data.classes == [ClassName(synset) for synset in SYNSETS]
    assert contents(data) == {"train": TRAIN}
    assert sorted(root.rglob("*")) == before
    assert "no images for val" in caplog.text


@pytest.mark.parametrize("labels", LABEL_FILES)
@pytest.mark.parametrize("layout", VAL_LAYOUTS)
def test_find_val_in_every_layout_with_every_label_file(root, layout, labels):
    write_files(root, TRAIN_LAYOUTS["tar"] | VAL_LAYOUTS[layout] | LABEL_FILES[labels])
    assert contents(find(root)) == {"train": TRAIN, "val": VAL_CONTENTS}


def test_val_in_class_folders_needs_no_label_file(root):
    write_files(root, {f"val/{name}": VAL_IMAGES[name.split("/")[1]] for name, _ in VAL_CONTENTS})
    assert contents(find(root)) == {"val": VAL_CONTENTS}


@pytest.mark.parametrize("labels", LABEL_FILES)
def test_given_label_file_has_priority_over_found_one(root, labels):
    write_files(root, VAL_LAYOUTS["tar"] | {"imagenet_2012_validation_synset_labels.txt": b"n09999999\n" * 4})
    write_files(root.parent / "elsewhere", LABEL_FILES[labels])
    name = next(iter(LABEL_FILES[labels])).split("/")[0]
    assert contents(find(root, val_labels=root.parent / "elsewhere" / name)) == {"val": VAL_CONTENTS}


def test_validation_image_without_label_is_reported(root):
    write_files(root, VAL_LAYOUTS["tar"] | {"imagenet_2012_validation_synset_labels.txt": b"n01440764\n" * 3})
    with pytest.raises(DataError, match=r"no label for ILSVRC2012_val_00000004\.JPEG among 3 labels"):
        find(root)


def test_validation_labels_follow_image_number_not_position(root, caplog):
    write_files(root, LABEL_FILES["list"])
    images = {name: c for name, c in VAL_IMAGES.items() if not name.endswith("1.JPEG")}
    write_files(root, {"ILSVRC2012_img_val.tar": make_tar(images)})
    assert contents(find(root)) == {"val": [(name, min(label, 1)) for name, label in VAL_CONTENTS[:3]]}
    assert "found 3 of 4 validation images" in caplog.text


def test_val_images_of_classes_missing_in_train_are_skipped_with_warning(root, caplog):
    write_files(root, VAL_LAYOUTS["tar"] | LABEL_FILES["list"])
    write_files(root, {name: c for name, c in TRAIN_LAYOUTS["folders"].items() if "n02099601" not in name})
    found = contents(find(root))
    assert found["val"] == VAL_CONTENTS[:3]
    assert "skipped 1 image of classes that are not in train (n02099601 ...)" in caplog.text


@pytest.mark.parametrize(
    ("name", "gap"),
    [("LOC_synset_mapping.txt", " "), ("synset_words.txt", " "), ("imagenet_metadata.txt", "\t"), ("", "")],
)
def test_class_names_are_read_from_published_files(root, name, gap):
    content = "".join(f"{synset}{gap}{text}\n" for synset, text in TEXTS.items()) + f"n00000001{gap}x\n"
    write_files(root, TRAIN_LAYOUTS["tar"] | ({name: content.encode()} if name else LABEL_FILES["devkit"]))
    assert find(root).classes == [ClassName(synset, TEXTS[synset]) for synset in SYNSETS]


def xml(*objects: tuple[str, object, object, object, object], width: object = 500, height: object = 400) -> str:
    objects_xml = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, left, top, right, bottom in objects
    )
    return (
        f"<annotation><folder>x</folder><filename>%s</filename>"
        f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>{objects_xml}</annotation>"
    )


XML = xml(("x", 10, 10, 90, 50), width=100, height=50).encode()
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
def test_boxes_are_found_in_every_layout(root, files):
    write_files(root, TRAIN_LAYOUTS["tar"] | VAL_LAYOUTS["tar"] | LABEL_FILES["list"] | files)
    train, val = (split.source for split in find(root).splits)
    boxes = {train.name(i): train.read(i).boxes for i in range(len(train))}
    assert boxes.pop("n01443537/n01443537_10.JPEG") == (Box(1, 0.1, 0.2, 0.9, 1.0),)
    assert set(boxes.values()) == {()}
    assert [val.read(i).boxes for i in range(4)] == [(), (), (), (Box(2, 0.1, 0.2, 0.9, 1.0),)]


def test_given_box_file_has_priority_over_found_one(root):
    write_files(root, TRAIN_LAYOUTS["tar"] | {"imagenet_2012_bounding_boxes.csv": b"n01443537_10.JPEG,0,0,1,1\n"})
    given = root.parent / "mine.csv"
    given.write_text("n01440764_9.JPEG,0,0,0.5,0.5\n")
    train = find(root, boxes=given).splits[0].source
    assert [len(train.read(i).boxes) for i in range(6)] == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.txt", b"n01440764\ngoldfish\n", "line 2: invalid synset 'goldfish'"),
        ("labels.txt", b"", "empty"),
        ("labels.csv", b"ImageId,PredictionString\nILSVRC2012_val_1,n01440764 1 2 3 4\n", "line 2"),
        ("labels.csv", b"ImageId,PredictionString\nILSVRC2012_val_00000001\n", "line 2"),
        ("kit.tar", make_tar({"data/x": b""}), r"meta\.mat and ILSVRC2012_validation_ground_truth\.txt"),
        ("kit.tar", make_tar(devkit() | {f"y/{TRUTH}": b"1\n1001\n"}), r"line 2: invalid class '1001'; 1 to 1000 are"),
        ("kit.tar", make_tar(devkit() | {"y/meta.mat": os.urandom(300)}), r"meta\.mat"),
    ],
)
def test_invalid_label_file_is_rejected_with_line(root, name, content, message):
    write_files(root, VAL_LAYOUTS["tar"])
    write_files(root.parent, {name: content})
    with pytest.raises(DataError, match=message):
        find(root, val_labels=root.parent / name)


def test_images_outside_synset_folders_are_skipped_with_warning(root, caplog):
    unexpected = ("train/stray.JPEG", "train/n01440764/._n01440764_1.JPEG", "train/backup/n01440764/n01440764_99.JPEG")
    write_files(root, TRAIN_LAYOUTS["folders"] | dict.fromkeys(unexpected, make_jpeg(1)))
    assert contents(find(root)) == {"train": TRAIN}
    assert "skipped 1 image outside synset folders" in caplog.text


DOG, CAT = "n02092002", "n02123045"
KNOWN = {DOG, CAT}


def read_xml(content: str | bytes, synset: str | None = DOG) -> list[Edges]:
    data = content if isinstance(content, bytes) else content.encode()
    return read_box_xml(data, synset, KNOWN, where="n1/n1_2.xml")


def test_read_box_xml_returns_sorted_clipped_shares_with_four_decimals():
    assert read_xml(xml((DOG, 53, 1, 300, 399), width=333)) == [(0.1592, 0.0025, 0.9009, 0.9975)]
    assert read_xml(xml((DOG, 600, 300, -20, 100))) == [(0.0, 0.25, 1.0, 0.75)]
    for without_area in ((10, 10, 10, 50), (10, 50, 40, 50), (600, 10, 700, 50), (-9, 10, -1, 50)):
        assert read_xml(xml((DOG, *without_area), (DOG, 0, 0, 500, 400))) == [(0.0, 0.0, 1.0, 1.0)]


def test_read_box_xml_applies_first_label_to_all_boxes():
    whole = (0, 0, 500, 400)
    assert read_xml(xml((CAT, *whole), (DOG, *whole))) == []
    assert len(read_xml(xml((DOG, *whole), (CAT, *whole)))) == 2
    assert len(read_xml(xml(("Scottish_deerhound", *whole), (CAT, *whole)))) == 2
    assert len(read_xml(xml(("n99999999", *whole)))) == 1
    assert len(read_xml(xml((CAT, *whole), (DOG, *whole)), None)) == 2


@pytest.mark.parametrize(
    "content",
    ["", "<annotation>", xml(width=0), xml(height="nan"), xml(width=""), xml((DOG, "left", 1, 2, 3)), "<annotation/>",
     b"\xff\xfe\0<", xml() + " " * 2**20, "<a>" * 10_000],
)  # fmt: skip
def test_read_box_xml_rejects_invalid_xml_with_file_name(content):
    with pytest.raises(DataError, match=r"^n1/n1_2\.xml: "):
        read_xml(content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-7"])
def test_read_box_xml_rejects_entities(encoding):
    laughs = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    with pytest.raises(DataError, match=r"document type|invalid XML"):
        read_xml(laughs.encode(encoding))


FILES = {
    f"{DOG}/{DOG}_1.xml": xml((DOG, 0, 0, 50, 40), (DOG, 100, 80, 500, 400)).encode(),
    f"{DOG}/{DOG}_2.xml": xml((CAT, 0, 0, 50, 40)).encode(),
    f"{CAT}/{CAT}_7.xml": xml(("cat", 0, 0, 250, 200)).encode(),
    "n00000001/n00000001_1.xml": b"not even XML",
    "val/ILSVRC2012_val_00000001.xml": xml((CAT, 0, 0, 500, 200)).encode(),
}
BOXES = {
    f"{DOG}_1": ((0.0, 0.0, 0.1, 0.1), (0.2, 0.2, 1.0, 1.0)),
    f"{CAT}_7": ((0.0, 0.0, 0.5, 0.5),),
    "ILSVRC2012_val_00000001": ((0.0, 0.0, 1.0, 0.5),),
}


def test_read_boxes_from_folder_of_xml(tmp_path):
    write_files(tmp_path / "Annotation", FILES | {f"{DOG}/._hidden.xml": b"mac"})
    assert read_boxes(tmp_path / "Annotation", KNOWN) == BOXES
    # A path to a single synset's folder works too.
    assert read_boxes(tmp_path / "Annotation" / DOG, KNOWN) == {f"{DOG}_1": BOXES[f"{DOG}_1"]}


def test_read_boxes_from_tars_of_xml(tmp_path):
    plain, packed, nested = tmp_path / "a.tar", tmp_path / "b.tar.gz", tmp_path / "c.tgz"
    plain.write_bytes(make_tar(FILES))
    packed.write_bytes(gzip.compress(make_tar({f"./bbox/{n}": c for n, c in FILES.items()})))
    parts: dict[str, bytes] = {"n00000001.tar.gz": b"not even packed"}
    for folder in (DOG, CAT, "val"):
        inner = {name: content for name, content in FILES.items() if name.startswith(folder)}
        parts[f"{folder}.tar.gz"] = gzip.compress(make_tar(inner))
    nested.write_bytes(gzip.compress(make_tar(parts)))
    for path in (plain, packed, nested):
        assert read_boxes(path, KNOWN) == BOXES


def test_read_boxes_reports_damaged_tar_member(tmp_path):
    path = tmp_path / "bbox.tar"
    path.write_bytes(make_tar({f"{DOG}/{DOG}_1.xml": b"<a>"}))
    with pytest.raises(DataError, match=rf"bbox\.tar, {DOG}/{DOG}_1\.xml: invalid XML"):
        read_boxes(path, KNOWN)
    with pytest.raises(DataError, match="no such file"):
        read_boxes(tmp_path / "none.tar", KNOWN)


def test_read_boxes_from_csv_with_and_without_folders(tmp_path):
    path = tmp_path / "boxes.csv"
    lines = [(f"{name}.JPEG", edges) for name, boxes in BOXES.items() for edges in boxes]
    path.write_text("".join(f"{name},{','.join(map(str, edges))}\n" for name, edges in lines))
    assert read_boxes(path, KNOWN) == BOXES
    path.write_text("".join(f"val/{name},{','.join(map(str, edges))}\n" for name, edges in lines))
    assert read_boxes(path, KNOWN) == BOXES
    path.write_text("")
    assert read_boxes(path, KNOWN) == {}
