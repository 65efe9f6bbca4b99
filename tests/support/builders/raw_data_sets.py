"""Raw images for data sets: a small ImageNet with its faulty images, unusual class folders, scenes with boxes."""

import io
from pathlib import Path

from PIL import Image

from trainstone.data.recognise import open_dataset
from trainstone.data.sample import Sample
from trainstone.data.synthetic.generated import GeneratedSource
from trainstone.formats.recordio import MAGIC_BYTES, ImageRecord, pack_labels, pack_record

SYNSETS = {
    "n01440764": "tench, Tinca tinca",
    "n01739381": "vine snake",
    "n02105855": "Shetland sheepdog, Shetland sheep dog, Shetland",
    "n02447366": "badger",
    "n03000134": "chainlink fence",
}
SIZES = ((56, 48), (48, 64), (50, 50))
# Two images that build_imagenet_data.py repairs by name.
PNG = "n02105855/n02105855_2933.JPEG"
CMYK = "n01739381/n01739381_1309.JPEG"
EXTENSIONS = (".jpeg", ".jpg", ".png")
SCENES = ("--count", "41", "--val", "12", "--classes", "5", "--size", "120x90")


def make_imagenet(root: Path) -> None:
    """Write synset folders with images of several sizes, the two faulty images, boxes and class names."""
    boxes = []
    for split, count in (("train", 203), ("val", 53)):
        for number in range(count):
            synset = list(SYNSETS)[number % len(SYNSETS)]
            base = f"{synset}_{number}.JPEG" if split == "train" else f"ILSVRC2012_val_{number + 1:08d}.JPEG"
            place = root / split / synset / base
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(draw(split, number))
            boxes += [f"{base},0.1{number % 10},0.2,0.{n + 5}125,1.0\n" for n in range(number % 3)]
    special = {
        PNG: encode("png"),
        CMYK: encode("jpeg", "CMYK"),
        "n02447366/n02447366_grey.JPEG": encode("jpeg", "L"),
        "n03000134/n03000134_a b.ü.JPEG": insert_magic(draw("train", 1)),
    }
    for name, data in special.items():
        (root / "train" / name).write_bytes(data)
    (root / "imagenet_2012_bounding_boxes.csv").write_text("".join(sorted(boxes)))
    (root / "imagenet_metadata.txt").write_text("".join(f"{name}\t{text}\n" for name, text in SYNSETS.items()))


def make_unusual_folders(root: Path, imagenet: Path) -> None:
    """Write links to the same images, nested folders, other extensions, an EXIF-rotated image and a text file."""
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "n01440764/deeper/IMAGE.JPG": draw("train", 5),
        "n01440764/deeper/zebra.png": encode("png"),
        "n01440764/turned.jpg": encode("jpeg", exif=turned),
        "n01440764/notes.txt": b"not an image",
        "Größe 10/Größe.jpeg": draw("train", 6),
    }
    for split in ("train", "val"):
        for path in sorted((imagenet / split).rglob("*.JPEG")):
            link = root / split / path.relative_to(imagenet / split)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        for name, data in files.items():
            path = root / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def draw_scenes(split: str) -> GeneratedSource:
    return GeneratedSource("detect", split, {"train": 41, "val": 12}[split], 120, 90, 5)


def draw(split: str, number: int) -> bytes:
    width, height = SIZES[number % len(SIZES)]
    return GeneratedSource("classify", split, number + 1, width, height, len(SYNSETS)).read(number).image


def encode(kind: str, mode: str = "RGB", **options: Image.Exif) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(draw("train", 0))) as image:
        image.convert(mode).save(file, kind, **options)
    return file.getvalue()


def insert_magic(jpeg: bytes) -> bytes:
    """Return the JPEG with RecordIO's magic number, aligned, in a comment: such an image is stored in several parts."""
    comment = b"to" + MAGIC_BYTES + b"be split" + MAGIC_BYTES
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def pack_payload(payload: bytes) -> bytes:
    return b"".join(pack_record(b"", payload))


def pack_image(record: ImageRecord) -> bytes:
    return b"".join(pack_record(pack_labels(record), bytes(record.image)))


def read_all(path: Path) -> dict[str, list[Sample]]:
    return {split.name: [split.source.read(n) for n in range(len(split.source))] for split in open_dataset(path).splits}


def label_by_folder(root: Path) -> dict[str, int]:
    """Return the label of each image below a folder: the rank of its folder."""
    names = sorted(path.relative_to(root) for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS)
    folders = sorted({name.parent for name in names})
    return {name.as_posix(): folders.index(name.parent) for name in names}
