"""Overfitting test of SSD300: train on four COCO images from random weights until the loss is small.

    python benchmarks/ssd_overfit.py COCO [--steps 60] [--seed N ...] [--image FILE.png]

COCO is a folder with train2017/ and annotations/. No augmentation; the images are resized to 300 pixels. Prints the
losses of each seed and exits with 1 if the mean of the last five is not below a quarter of the first. Takes three
minutes per seed on two idle cores.
"""

import argparse
import sys
from pathlib import Path

import altair as alt
import cv2
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from trainstone.data.image.decode import decode
from trainstone.formats.coco import number_categories, read_instances
from trainstone.machine.allocator import restart_keeping_memory
from trainstone.machine.cpus import available_cores
from trainstone.models.boxes import default_boxes, match
from trainstone.models.losses import detection_loss
from trainstone.models.ssd import build_ssd
from trainstone.workloads.workload import Normaliser

IMAGE_SIZE = 300
NUM_IMAGES = 4
WARM_UP_STEPS = 10
LAST_STEPS = 5
MAX_SHARE = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, help="Number of threads (default: the physical cores).")
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    restart_keeping_memory()
    torch.set_num_threads(options.threads or available_cores().threads)
    batch = read_batch(options.data)
    losses = {seed: train(batch, seed, options.steps, options.rate) for seed in options.seed}
    shares = {seed: sum(row[-LAST_STEPS:]) / LAST_STEPS / row[0] for seed, row in losses.items()}
    for seed, row in losses.items():
        print(f"seed {seed}: {row[0]:.2f} to {row[-1]:.2f} in {options.steps} steps, then {shares[seed]:.1%} of it")
    if options.image:
        draw(losses).save(options.image, scale_factor=1)
    sys.exit(max(shares.values()) >= MAX_SHARE)


def read_batch(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, boxes and labels of the first images with objects; crowds are skipped."""
    instances = read_instances(folder / "annotations/instances_train2017.json")
    numbers = number_categories(instances.categories)
    objects = {
        image: [one for one in instances.annotations if one.image_id == image.id and not one.crowd]
        for image in instances.images
    }
    chosen = [(image, found) for image, found in objects.items() if found][:NUM_IMAGES]
    images = torch.zeros(len(chosen), IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8)
    boxes = torch.zeros(len(chosen), max(len(found) for _, found in chosen), 4)
    labels = torch.full(boxes.shape[:2], -1)
    for row, (image, found) in enumerate(chosen):
        pixels = decode((folder / "train2017" / image.file_name).read_bytes())
        small = cv2.resize(pixels, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA)
        images[row] = torch.from_numpy(small)
        for column, one in enumerate(found):
            left, top, width, height = one.bbox
            edges = torch.tensor([left, top, left + width, top + height])
            boxes[row, column] = edges / torch.tensor([image.width, image.height] * 2)
            labels[row, column] = numbers[one.category_id] - 1
    return images, boxes, labels


def train(batch: tuple[Tensor, Tensor, Tensor], seed: int, num_steps: int, rate: float) -> list[float]:
    """Return the loss of each step."""
    images, boxes, labels = batch
    torch.manual_seed(seed)
    model = build_ssd(34, num_classes=80, image_size=IMAGE_SIZE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    pixels = Normaliser("standard", torch.device("cpu"))(images)
    targets, target_offsets = match(boxes, labels, default_boxes(IMAGE_SIZE), min_overlap=0.5)
    losses = []
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARM_UP_STEPS)
        loss = detection_loss(*model(pixels), targets, target_offsets, negatives=3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"seed {seed} step {step + 1:3d} loss {losses[-1]:.3f}", file=sys.stderr, flush=True)
    return losses


def draw(losses: dict[int, list[float]]) -> alt.TopLevelMixin:
    """Return a chart of loss over steps, one line per seed, with a quarter of the first loss."""
    rows = [
        {"step": step, "loss": loss, "seed": str(seed)}
        for seed, row in losses.items()
        for step, loss in enumerate(row, start=1)
    ]
    curve = alt.Chart(alt.Data(values=rows)).mark_line().encode(x="step:Q", y="loss:Q", color="seed:N")
    quarter = MAX_SHARE * min(row[0] for row in losses.values())
    level = alt.Chart(alt.Data(values=[{"loss": quarter}])).mark_rule(strokeDash=[4, 4]).encode(y="loss:Q")
    return (curve + level).properties(width=480, height=260)


if __name__ == "__main__":
    main()
