"""`trainstone data imagenet` on a small ILSVRC2012 in the shape that people download: tars of tars and all."""

import gzip
import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image

from made_archives import make_tar, write_files
from trainstone.data.generated.source import GeneratedSource
from trainstone.data.storage.tfrecord import TFRecordShard

SYNSETS = ("n01440764", "n01443537", "n02105855")
LABELS = ("n02105855", "n01440764", "n01443537", "n01443537")
XML = """<annotation><folder>x</folder><filename>%s</filename><size><width>100</width><height>50</height></size>
<object><name>{synset}</name><bndbox><xmin>10</xmin><ymin>5</ymin><xmax>60</xmax><ymax>45</ymax></bndbox></object>
</annotation>"""


def picture(number: int) -> bytes:
    return GeneratedSource("classify", "train", 100, 60, 40, 2).read(number).image


def encode(kind: str, mode: str) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture(1))).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def train_pictures() -> dict[str, dict[str, bytes]]:
    """Six a class; one is a PNG in disguise, one a CMYK JPEG, neither of a name that any list has."""
    found = {
        synset: {f"{synset}_{10 * n}.JPEG": picture(6 * place + n) for n in range(6)}
        for place, synset in enumerate(SYNSETS)
    }
    found[SYNSETS[0]][f"{SYNSETS[0]}_20.JPEG"] = encode("PNG", "RGB")
    found[SYNSETS[1]][f"{SYNSETS[1]}_40.JPEG"] = encode("JPEG", "CMYK")
    return found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archives")
    inner = {f"{synset}.tar": make_tar(files) for synset, files in train_pictures().items()}
    val = {f"ILSVRC2012_val_{n + 1:08d}.JPEG": picture(50 + n) for n in range(4)}
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
    for synset, files in train_pictures().items():
        write_files(root / "train" / synset, files)
        box = XML.format(synset=synset).encode()
        write_files(root / "Annotation" / synset, {f"{synset}_0.xml": box})
    for number, synset in enumerate(LABELS):
        write_files(root / "val" / synset, {f"ILSVRC2012_val_{number + 1:08d}.JPEG": picture(50 + number)})
    (root / "synset_words.txt").write_bytes((archives / "synset_words.txt").read_bytes())
    return root


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("storage", ["recordio", "tfrecord", "folder", "wds"])
def test_tars_and_folders_give_the_same_bytes(archives: Path, folders: Path, tmp_path: Path, quick, storage: str):
    for source in (archives, folders):
        done = quick("data", "imagenet", "--from", str(source), "--to", source.name, "--format", storage, "-q")
        assert done.code == 0, done.err
        assert "18 train, 4 val; 3 classes" in done.out
        assert "repaired  1 picture: PNG named .JPEG" in done.out
        assert "repaired  1 picture: CMYK JPEG" in done.out
    assert digest(tmp_path / archives.name) == digest(tmp_path / folders.name)
    assert quick("data", "verify", archives.name, "-q").code == 0


def test_records_say_what_the_originals_said(archives: Path, tmp_path: Path, quick):
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
    assert dog["image/encoded"] == [picture(12)]
    mended = found["n01440764_20.JPEG"]
    assert mended["image/format"] == [b"JPEG"]
    assert mended["image/encoded"][0].startswith(b"\xff\xd8")
    assert found["n01443537_10.JPEG"]["image/object/bbox/xmin"] == []


def test_without_repair_every_byte_is_the_original(archives: Path, tmp_path: Path, quick):
    arguments = ["data", "imagenet", "--from", str(archives), "--to", "set", "--format", "folder", "--no-repair", "-q"]
    assert quick(*arguments).code == 0
    for synset, files in train_pictures().items():
        for name, content in files.items():
            assert (tmp_path / "set/train" / synset / name).read_bytes() == content
