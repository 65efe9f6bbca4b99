"""torch's DataLoader with Pillow: a process for each thread, each decodes whole images, crops and resizes in one."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from turns import serve

BILINEAR, MIRROR = Image.Resampling.BILINEAR, Image.Transpose.FLIP_LEFT_RIGHT


class Images(Dataset):
    """Files of class folders, each time cropped and mirrored anew."""

    def __init__(self, folder, size) -> None:
        self.paths = sorted(Path(folder).glob("*/*"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]
        self.size = (size, size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number) -> tuple:
        with Image.open(self.paths[number]) as opened:
            # Not `draft`, which decodes at half the size: a usual loader does not.
            image = opened.convert("RGB")
        image = image.resize(self.size, BILINEAR, box=draw_crop(*image.size))
        if random.random() < 0.5:
            image = image.transpose(MIRROR)
        return torch.from_numpy(np.array(image)), self.labels[number]


def draw_crop(width, height) -> tuple:
    """Return left, top, right, bottom: torchvision's law."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, left + across, top + down
    side = min(width, height)  # seldom reached
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2


def open_batches(_, job) -> Iterator:
    loader = DataLoader(
        Images(job["folder"], job["size"]),
        batch_size=job["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=job["threads"],
        prefetch_factor=4,
        persistent_workers=True,  # they live from epoch to epoch, and end with the loader
    )
    while True:
        yield from loader


serve(f"torch {torch.__version__}, Pillow {Image.__version__}", ["processes"], open_batches)
