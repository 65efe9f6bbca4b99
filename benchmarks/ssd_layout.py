"""Speed of trainstone's SSD300 compared with a common implementation: same weights and arithmetic, interleaved.

    python benchmarks/ssd_layout.py [--batch 2] [--rounds 6] [--threads N] [--bf16]

The common implementation ("usual NCHW"): NCHW, two heads per map with permuted and concatenated outputs, matching image
by image, torch's default optimiser step. "channels-last" is trainstone without the allocator settings, "trainstone"
with them. --bf16 adds "trainstone bf16", which `train.precision=auto` selects on processors that support it. Each
variant runs in its own process and executes blocks of steps in the order A B C C B A ...; the others are idle.
On a busy machine use one thread and compare processor time: threads that wait for each other waste it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

from interleave import palindromes, ratio

from trainstone.machine.allocator import add_tunables

VARIANTS = ("usual NCHW", "channels-last", "trainstone")
BF16 = "trainstone bf16"
MIN_GAIN = 1.25
NUM_CLASSES, NUM_OBJECTS = 80, 8
MAX_LOSS_DIFFERENCE = 1e-3


def build_step(variant: str, options: argparse.Namespace) -> Callable[[], float]:
    """Return a function that trains one step and returns its loss."""
    import torch

    from trainstone.machine.cpus import available_cores
    from trainstone.models.boxes import default_boxes
    from trainstone.models.ssd import build_ssd

    batch, size = options.batch, options.size
    torch.set_num_threads(options.threads or available_cores().threads)
    torch.manual_seed(0)
    model = build_ssd(34, num_classes=NUM_CLASSES, image_size=size)
    images = torch.randint(256, (batch, size, size, 3), dtype=torch.uint8)
    corners = torch.rand(batch, NUM_OBJECTS, 2) * 0.6
    boxes = torch.cat([corners, corners + 0.05 + torch.rand(batch, NUM_OBJECTS, 2) * 0.35], dim=2)
    labels = torch.randint(NUM_CLASSES, (batch, NUM_OBJECTS))
    build = build_usual_loss if variant == "usual NCHW" else build_our_loss
    model, measure = build(model, images, boxes, labels, default_boxes(size))
    ours = variant != "usual NCHW"
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=ours or None)

    def run() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == BF16):
            loss = measure()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def build_our_loss(model, images, boxes, labels, defaults):  # noqa: ANN201
    import torch

    from trainstone.models.boxes import match
    from trainstone.models.losses import detection_loss
    from trainstone.workloads.workload import Normaliser

    model = model.to(memory_format=torch.channels_last)
    see = Normaliser("standard", torch.device("cpu"))

    def measure() -> torch.Tensor:
        wanted = match(boxes, labels, defaults, min_overlap=0.5)
        return detection_loss(*model(see(images)), *wanted, negatives=3)

    return model, measure


def build_usual_loss(ssd, images, boxes, labels, defaults):  # noqa: ANN201
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from trainstone.models.boxes import encode, overlap, to_edges
    from trainstone.workloads.workload import Normaliser

    class UsualSsd(nn.Module):
        """The same weights with two heads per map."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.extras = ssd.backbone, ssd.extras
            self.classes, self.places = nn.ModuleList(), nn.ModuleList()
            for head, number in zip(ssd.heads, ssd.boxes_per_cell, strict=True):
                parts = (number * ssd.num_outputs, number * 4)
                weights, biases = head.weight.split(parts), head.bias.split(parts)
                for heads, weight, bias in zip((self.classes, self.places), weights, biases, strict=True):
                    heads.append(nn.Conv2d(head.in_channels, len(weight), 3, padding=1))
                    heads[-1].load_state_dict({"weight": weight, "bias": bias})

        def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
            maps = [self.backbone(pixels)]
            for extra in self.extras:
                maps.append(extra(maps[-1]))
            scores = [head(x).permute(0, 2, 3, 1).contiguous() for head, x in zip(self.classes, maps, strict=True)]
            offsets = [head(x).permute(0, 2, 3, 1).contiguous() for head, x in zip(self.places, maps, strict=True)]
            scores = torch.cat([one.view(len(pixels), -1) for one in scores], dim=1)
            offsets = torch.cat([one.view(len(pixels), -1) for one in offsets], dim=1)
            return scores.view(len(pixels), -1, ssd.num_outputs), offsets.view(len(pixels), -1, 4)

    def match_one(edges: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        overlaps = overlap(edges, to_edges(defaults))
        best, chosen = overlaps.max(0)
        for number, place in enumerate(overlaps.argmax(1).tolist()):
            best[place], chosen[place] = 2.0, number
        targets = classes[chosen] + 1
        targets[best <= 0.5] = 0
        return targets, encode(edges[chosen], defaults)

    def measure_one(scores: Tensor, offsets: Tensor, targets: Tensor, wanted: Tensor) -> Tensor:
        positive = targets > 0
        num_positive = int(positive.sum())
        losses = F.cross_entropy(scores, targets, reduction="none")
        hardest = losses[~positive].sort(descending=True).values[: 3 * num_positive]
        distance = F.smooth_l1_loss(offsets[positive], wanted[positive], reduction="sum")
        return (losses[positive].sum() + hardest.sum() + distance) / max(num_positive, 1)

    model, see = UsualSsd(), Normaliser("standard", torch.device("cpu"), channels_last=False)

    def measure() -> Tensor:
        scores, offsets = model(see(images))
        wanted = [match_one(edges, classes) for edges, classes in zip(boxes, labels, strict=True)]
        losses = [measure_one(scores[row], offsets[row], *wanted[row]) for row in range(len(wanted))]
        return torch.stack(losses).mean()

    return model, measure


def serve(variant: str, options: argparse.Namespace) -> None:
    """Child: read a number of steps, run them, answer with their seconds, processor seconds and last loss."""
    run = build_step(variant, options)
    for line in sys.stdin:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        losses = [run() for _ in range(int(line))]
        print(time.perf_counter() - begin, time.process_time() - begin_cpu, losses[-1], flush=True)


def start(variant: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    environment = add_tunables(os.environ) if variant.startswith("trainstone") else dict(os.environ)
    command = [sys.executable, __file__, "--serve", variant, "--batch", str(options.batch), "--size", str(options.size)]
    command += ["--threads", str(options.threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def run_block(child: subprocess.Popen[str], num_steps: int) -> tuple[float, float, float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{num_steps}\n")
    child.stdin.flush()
    seconds, cpu_seconds, loss = map(float, child.stdout.readline().split())
    return seconds, cpu_seconds, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=300, help="Image size in pixels.")
    parser.add_argument("--rounds", type=int, default=6, help="Blocks per variant.")
    parser.add_argument("--steps", type=int, default=2, help="Steps per block.")
    parser.add_argument("--threads", type=int, default=0, help="Number of threads; 0: the physical cores.")
    parser.add_argument("--bf16", action="store_true", help="Also run trainstone in bf16.")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options)
        return
    variants = (*VARIANTS, *([BF16] if options.bf16 else []))
    children = {variant: start(variant, options) for variant in variants}
    losses = [run_block(child, 1)[2] for child in children.values()][: len(VARIANTS)]
    if max(losses) - min(losses) > MAX_LOSS_DIFFERENCE * max(losses):
        sys.exit(f"the variants do not compute the same: first losses are {losses}")
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    cpu_seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for variant in palindromes(variants, options.rounds):
        taken, taken_cpu, _ = run_block(children[variant], options.steps)
        seconds[variant].append(taken)
        cpu_seconds[variant].append(taken_cpu)
    for child in children.values():
        child.communicate()
    print(f"SSD300-ResNet34 at {options.size} pixels, batch {options.batch}, fp32; {options.rounds} blocks of", end=" ")
    print(f"{options.steps} steps; first loss {losses[0]:.3f} in all of fp32")
    for kind, measured in (("", seconds), ("by processor time", cpu_seconds)):
        for variant, blocks in measured.items():
            rate = options.batch * options.steps * len(blocks) / sum(blocks)
            middle, low, high = ratio(measured[VARIANTS[0]], blocks)
            row = f"{rate:6.2f} images/s   {middle:.3f} x {VARIANTS[0]} (95 %: {low:.3f} … {high:.3f})"
            print(f"{variant:<15} {row} {kind}")
    compared = cpu_seconds if options.threads == 1 else seconds
    sys.exit(ratio(compared[VARIANTS[0]], compared[VARIANTS[-1]])[0] < MIN_GAIN)


if __name__ == "__main__":
    main()
