"""Arm of benchmarks/input.py: torch's DataLoader with Pillow. One process per thread decodes, crops and resizes."""

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
    """Images of class folders, randomly cropped and mirrored."""

    def __init__(self, folder, size) -> None:
        self.paths = sorted(Path(folder).glob("*/*"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]
        self.size = (size, size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number) -> tuple:
        with Image.open(self.paths[number]) as opened:
            # Without `draft`, which decodes at half size: common loaders do not use it.
            image = opened.convert("RGB")
        image = image.resize(self.size, BILINEAR, box=draw_crop(*image.size))
        if random.random() < 0.5:
            image = image.transpose(MIRROR)
        return torch.from_numpy(np.array(image)), self.labels[number]


def draw_crop(width, height) -> tuple:
    """Return left, top, right, bottom with torchvision's distribution."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, left + across, top + down
    side = min(width, height)  # rarely reached
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2


def open_batches(_, job) -> Iterator:
    loader = DataLoader(
        Images(job["folder"], job["size"]),
        batch_size=job["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=job["threads"],
        prefetch_factor=4,
        persistent_workers=True,  # kept across epochs
    )
    while True:
        yield from loader


serve(f"torch {torch.__version__}, Pillow {Image.__version__}", ["processes"], open_batches)
