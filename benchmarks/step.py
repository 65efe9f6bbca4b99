"""Speed of a ResNet-50 training step on the CPU: trainstone, PyTorch, MXNet and TensorFlow, interleaved.

    python benchmarks/step.py [--batch 2,8,16] [--precision fp32,bf16] [--rounds 6] [--steps 3] [--arms ARM ...]

Each arm (peers/step_*.py) runs in its own process and environment (`make interop`; missing ones are not run) and
executes blocks of steps in the order A B C C B A ...; the others are idle, which is checked. Same image size, classes,
number of threads; forward, backward and update, batches in memory. A precision is that of the convolutions (bf16:
autocast, mixed precision or AMP of each system). Of an arm's variants the fastest in a trial is used.

PyTorch NCHW           torch's defaults: the common training loop
PyTorch channels-last  the same with memory_format=torch.channels_last
PyTorch by hand        what an expert writes: channels-last, fused SGD, and trainstone's allocator setting
MXNet                  Gluon's resnet50_v1: strides on the 1x1 convolutions, hence fewer FLOPs
TensorFlow             v1.5 in Keras, with fused batch normalisation and update

Rates are per image and per FLOP (multiply-adds of each arm's own convolutions and dense layer, times 2). The claims, in
`GOALS`, are about rates per FLOP at the largest batch only: `trainstone bench` selects a batch of about that size.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from children import Child, ChildEnded, is_installed
from interleave import palindromes, ratio

from trainstone.machine.allocator import add_tunables
from trainstone.machine.cpus import available_cores
from trainstone.measure.peaks import Peaks, measure_peaks

OURS, BY_HAND = "trainstone", "PyTorch by hand"
NUM_CLASSES = 1000
DEFAULT, KEEPS_MEMORY, XLA = "default", "glibc keeps memory", "XLA"
WARM_UP_STEPS, TRIALS = 2, 2


class Arm(NamedTuple):
    program: str
    environment: str = ""
    """Folder below .interop; empty: the project's own environment."""
    variants: tuple[str, ...] = (DEFAULT,)


ARMS = {
    OURS: Arm("step_torch.py", "", (KEEPS_MEMORY,)),
    "PyTorch NCHW": Arm("step_torch.py"),
    "PyTorch channels-last": Arm("step_torch.py"),
    BY_HAND: Arm("step_torch.py", "", (KEEPS_MEMORY,)),
    "MXNet": Arm("step_mxnet.py", "mxnet", (DEFAULT, KEEPS_MEMORY)),
    "TensorFlow": Arm("step_tensorflow.py", "tensorflow", (DEFAULT, KEEPS_MEMORY, XLA)),
}
# Minimum of trainstone's rate / this arm's rate, per FLOP.
GOALS = {
    ("PyTorch NCHW", "fp32"): 1.25,
    ("PyTorch NCHW", "bf16"): 1.25,
    (BY_HAND, "fp32"): 1.0,
    (BY_HAND, "bf16"): 1.0,
    ("MXNet", "fp32"): 1.0,
    ("TensorFlow", "fp32"): 1.2,
    ("TensorFlow", "bf16"): 1.2,
}


class Result(NamedTuple):
    """Measurements of one precision and batch size."""

    children: dict[str, "Trainer"]
    seconds: dict[str, list[float]]
    """Seconds per image of each arm's blocks."""
    peaks: tuple[Peaks, Peaks]
    """Before and after."""


class Trainer(Child):
    """The process of one variant of an arm."""

    def __init__(self, arm: str, variant: str, job: dict[str, Any], folder: Path) -> None:
        program, environment, _ = ARMS[arm]
        errors = folder / f"{arm} {variant}.log"
        job = {**job, "arm": arm, "variant": variant}
        # MXNet would use half of the cores.
        variables = {"OMP_NUM_THREADS": str(job["threads"])}
        if variant == KEEPS_MEMORY:
            variables = add_tunables({**os.environ, **variables})
        super().__init__(arm, program, job, errors, environment=environment, variables=variables)
        self.variant, self.batch = variant, job["batch"]
        self.losses: list[float] = []

    def run(self, num_steps: int) -> float:
        """Return the seconds per image."""
        answer = self.request(str(num_steps))
        self.losses.append(answer["loss"])
        if not math.isfinite(answer["loss"]):
            sys.exit(f"{self.name}: loss became {answer['loss']}")
        return float(answer["seconds"]) / (num_steps * self.batch)


def main() -> None:
    options = parse_options()
    threads = available_cores().threads
    torch.set_num_threads(threads)
    arms = [arm for arm in options.arms if is_installed(arm, ARMS[arm].environment)]
    if not arms:
        sys.exit("none of the requested arms is installed")
    missed = False
    for precision in options.precision:
        for batch in sorted(options.batch):
            job = {"precision": precision, "batch": batch, "size": options.size}
            job |= {"classes": NUM_CLASSES, "threads": threads}
            # Blocks of all batch sizes have about the same number of images.
            num_steps = options.steps * max(options.batch) // batch
            result = measure(arms, job, options.rounds, num_steps)
            print(f"\nResNet-50, {options.size} pixels, {precision}, batch {batch}, {threads} threads; ", end="")
            print(f"{options.rounds} blocks of {num_steps} steps")
            missed |= print_result(result, precision, batch == max(options.batch))
    sys.exit(missed)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[2, 8, 16])
    parser.add_argument("--precision", type=lambda text: text.split(","), default=["fp32", "bf16"])
    parser.add_argument("--size", type=int, default=224, help="Image size in pixels.")
    parser.add_argument("--rounds", type=int, default=6, help="Blocks per arm, at least 2.")
    parser.add_argument(
        "--steps", type=int, default=3, help="Steps per block of the largest batch; more of smaller ones."
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM", help=str([*ARMS]))
    return parser.parse_args()


def measure(arms: Sequence[str], job: dict[str, Any], rounds: int, num_steps: int) -> Result:
    """Start the arms, measure interleaved blocks of them, and stop them."""
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        started = [start(arm, job, Path(folder), num_steps) for arm in arms]
        children = {child.name: child for child in started if child}
        for child in children.values():
            child.foreign.clear()  # of the trials
        before = measure_peaks(device, job["precision"])
        seconds: dict[str, list[float]] = {arm: [] for arm in children}
        for arm in palindromes(list(children), rounds):
            seconds[arm].append(children[arm].run(num_steps))
        peaks = before, measure_peaks(device, job["precision"])
        for child in children.values():
            child.close()
    return Result(children, seconds, peaks)


def start(arm: str, job: dict[str, Any], folder: Path, num_steps: int) -> Trainer | None:
    """Start an arm's variants one after the other and return the fastest; None if no variant works."""
    fastest, least = None, math.inf
    for variant in ARMS[arm].variants:
        try:
            child = Trainer(arm, variant, job, folder)
            child.run(WARM_UP_STEPS)
        except ChildEnded as err:
            if arm == OURS:
                raise
            print(f"{arm} ({variant}, {job['precision']}) is not run here: {str(err).splitlines()[-1]}")
            continue
        trials = TRIALS if len(ARMS[arm].variants) > 1 else 0
        taken = min((child.run(num_steps) for _ in range(trials)), default=0.0)
        slower = fastest if taken < least else child
        if taken < least:
            fastest, least = child, taken
        if slower:
            slower.close()
    return fastest


def print_result(result: Result, precision: str, claimed: bool) -> bool:
    """Print the table of one precision and batch size; return whether a goal was missed."""
    children, seconds, peaks = result
    best = peaks[0].best_of(peaks[1])
    shares = [share for child in children.values() for share in child.foreign]
    print(
        f"peak {peaks[0].flops / 1e9:.0f} GFLOP/s before, {peaks[1].flops / 1e9:.0f} after ({best.flops_source}); "
        f"CPU time of other programs: {statistics.median(shares):.0%} in the median block, {max(shares):.0%} at most"
    )
    print("arm                    images/s  GFLOP/image  GFLOP/s  of peak  loss")
    flops = {arm: child.hello["flops_per_image"] for arm, child in children.items()}
    for arm, child in children.items():
        rate = 1 / statistics.fmean(seconds[arm])
        print(
            f"{arm:21} {rate:9.2f} {flops[arm] / 1e9:12.2f} {rate * flops[arm] / 1e9:8.1f} "
            f"{rate * flops[arm] / best.flops:8.0%}  {child.losses[0]:.1f} to {child.losses[-1]:.1f}   "
            f"{child.hello['system']}; {child.variant}"
        )
    missed = False
    for arm in children:
        if arm == OURS or OURS not in children:
            continue
        per_image = ratio(seconds[arm], seconds[OURS])
        per_flop = [value * flops[OURS] / flops[arm] for value in per_image]
        goal = GOALS.get((arm, precision)) if claimed else None
        # Not slower than by hand: a difference within the noise is allowed.
        reached = per_flop[2 if arm == BY_HAND else 0]
        shown = f", goal {goal}{' (upper bound)' if arm == BY_HAND else ''}" if goal else ""
        missed |= bool(goal) and reached < goal
        print(f"{OURS} / {arm:21} images {format_ratio(per_image)}   FLOPs {format_ratio(per_flop)}{shown}")
    return missed


def format_ratio(values: Sequence[float]) -> str:
    middle, low, high = values
    return f"{middle:.3f} (95 %: {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
