import gzip

import pytest

from made_archives import make_tar
from trainstone.data.raw.imagenet import read_box_xml, read_boxes
from trainstone.data.sample import Edges
from trainstone.errors import DataError

DOG, CAT = "n02092002", "n02123045"
KNOWN = {DOG, CAT}


def read_xml(content: str | bytes, synset: str | None = DOG) -> list[Edges]:
    data = content if isinstance(content, bytes) else content.encode()
    return read_box_xml(data, synset, KNOWN, where="n1/n1_2.xml")


def xml(*objects: tuple[str, object, object, object, object], width: object = 500, height: object = 400) -> str:
    things = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, left, top, right, bottom in objects
    )
    return (
        f"<annotation><folder>x</folder><filename>%s</filename>"
        f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>{things}</annotation>"
    )


def test_edges_are_shares_of_the_stated_size_with_four_decimals():
    assert read_xml(xml((DOG, 53, 1, 300, 399), width=333)) == [(0.1592, 0.0025, 0.9009, 0.9975)]


def test_edges_are_put_in_order_and_cut():
    assert read_xml(xml((DOG, 600, 300, -20, 100))) == [(0.0, 0.25, 1.0, 0.75)]


@pytest.mark.parametrize("edges", [(10, 10, 10, 50), (10, 50, 40, 50), (600, 10, 700, 50), (-9, 10, -1, 50)])
def test_a_box_without_area_is_left_out(edges):
    assert read_xml(xml((DOG, *edges), (DOG, 0, 0, 500, 400))) == [(0.0, 0.0, 1.0, 1.0)]


def test_the_first_label_decides_for_all_boxes_of_a_file_as_in_the_original():
    whole = (0, 0, 500, 400)
    assert read_xml(xml((CAT, *whole), (DOG, *whole))) == []
    assert len(read_xml(xml((DOG, *whole), (CAT, *whole)))) == 2
    assert len(read_xml(xml(("Scottish_deerhound", *whole), (CAT, *whole)))) == 2
    assert len(read_xml(xml(("n99999999", *whole)))) == 1
    assert len(read_xml(xml((CAT, *whole), (DOG, *whole)), None)) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<annotation>",
        xml(width=0),
        xml(height="nan"),
        xml(width=""),
        xml((DOG, "left", 1, 2, 3)),
        "<annotation/>",
        b"\xff\xfe\0<",
        xml() + " " * 2**20,
        "<a>" * 10_000,
    ],
)
def test_damaged_xml_is_refused_by_name(content):
    with pytest.raises(DataError, match=r"^n1/n1_2\.xml: "):
        read_xml(content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-7"])
def test_entities_are_refused(encoding):
    laughs = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    with pytest.raises(DataError, match=r"document type|damaged"):
        read_xml(laughs.encode(encoding))


FILES = {
    f"{DOG}/{DOG}_1.xml": xml((DOG, 0, 0, 50, 40), (DOG, 100, 80, 500, 400)),
    f"{DOG}/{DOG}_2.xml": xml((CAT, 0, 0, 50, 40)),
    f"{CAT}/{CAT}_7.xml": xml(("cat", 0, 0, 250, 200)),
    "n00000001/n00000001_1.xml": "not even XML",
    "val/ILSVRC2012_val_00000001.xml": xml((CAT, 0, 0, 500, 200)),
}
BOXES = {
    f"{DOG}_1": ((0.0, 0.0, 0.1, 0.1), (0.2, 0.2, 1.0, 1.0)),
    f"{CAT}_7": ((0.0, 0.0, 0.5, 0.5),),
    "ILSVRC2012_val_00000001": ((0.0, 0.0, 1.0, 0.5),),
}


def as_bytes(files: dict[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in files.items()}


def test_a_folder_of_xml_is_read(tmp_path):
    for name, text in FILES.items():
        (tmp_path / "Annotation" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "Annotation" / name).write_text(text)
    (tmp_path / "Annotation" / DOG / "._hidden.xml").write_text("mac")
    assert read_boxes(tmp_path / "Annotation", KNOWN) == BOXES
    # One synset's folder alone says its synset, too.
    assert read_boxes(tmp_path / "Annotation" / DOG, KNOWN) == {f"{DOG}_1": BOXES[f"{DOG}_1"]}


def test_tars_of_xml_are_read(tmp_path):
    plain, packed, nested = tmp_path / "a.tar", tmp_path / "b.tar.gz", tmp_path / "c.tgz"
    plain.write_bytes(make_tar(as_bytes(FILES)))
    packed.write_bytes(gzip.compress(make_tar({f"./bbox/{n}": c for n, c in as_bytes(FILES).items()})))
    parts: dict[str, bytes] = {"n00000001.tar.gz": b"not even packed"}
    for folder in (DOG, CAT, "val"):
        inner = {name: content for name, content in as_bytes(FILES).items() if name.startswith(folder)}
        parts[f"{folder}.tar.gz"] = gzip.compress(make_tar(inner))
    nested.write_bytes(gzip.compress(make_tar(parts)))
    for path in (plain, packed, nested):
        assert read_boxes(path, KNOWN) == BOXES


def test_damage_in_a_tar_names_the_member(tmp_path):
    path = tmp_path / "bbox.tar"
    path.write_bytes(make_tar({f"{DOG}/{DOG}_1.xml": b"<a>"}))
    with pytest.raises(DataError, match=rf"bbox\.tar, {DOG}/{DOG}_1\.xml: damaged XML"):
        read_boxes(path, KNOWN)
    with pytest.raises(DataError, match="no such file"):
        read_boxes(tmp_path / "none.tar", KNOWN)


def test_a_csv_is_read_with_and_without_folders(tmp_path):
    path = tmp_path / "boxes.csv"
    lines = [(f"{name}.JPEG", edges) for name, boxes in BOXES.items() for edges in boxes]
    path.write_text("".join(f"{name},{','.join(map(str, edges))}\n" for name, edges in lines))
    assert read_boxes(path, KNOWN) == BOXES
    path.write_text("".join(f"val/{name},{','.join(map(str, edges))}\n" for name, edges in lines))
    assert read_boxes(path, KNOWN) == BOXES
    path.write_text("")
    assert read_boxes(path, KNOWN) == {}
