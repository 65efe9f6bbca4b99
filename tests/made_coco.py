"""Small sets in COCO's layout for tests, as folders and as zips; their pictures are heads only."""

import struct
import zipfile
from pathlib import Path

from trainstone.files import write_atomically
from trainstone.formats.coco import CocoAnnotation, CocoCategory, CocoImage, Instances, full

CATEGORIES = [CocoCategory(9, "square"), CocoCategory(4, "circle")]


def jpeg(width: int, height: int) -> bytes:
    """As much of a JPEG as a look at its head needs."""
    frame = struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8\xff\xc0" + frame + b"\xff\xd9"


def make_instances(num_images: int) -> Instances:
    images = [CocoImage(100 - n, f"{n:012d}.jpg", 40, 20) for n in range(num_images)]
    annotations = [CocoAnnotation(n + 1, 100 - n, 9 if n % 2 else 4, (10, 5, 20, 10.0)) for n in range(num_images - 1)]
    return Instances(images, annotations, CATEGORIES)


def make_set(root: Path, **splits: Instances) -> Path:
    (root / "annotations").mkdir(parents=True)
    for stem, instances in splits.items():
        (root / stem).mkdir()
        write_atomically(root / f"annotations/instances_{stem}.json", full(instances))
        for image in instances.images:
            (root / stem / image.file_name).write_bytes(jpeg(image.width, image.height))
    return root


def make_zips(folder: Path, target: Path) -> Path:
    target.mkdir()
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        name = "annotations_trainval2017" if part.name == "annotations" else part.name
        with zipfile.ZipFile(target / f"{name}.zip", "w") as archive:
            for file in sorted(part.rglob("*")):
                archive.write(file, f"{part.name}/{file.relative_to(part)}")
    return target
