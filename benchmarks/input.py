"""Speed of JPEG input pipelines: trainstone, tf.data, DALI, torch's DataLoader with Pillow, MXNet, interleaved.

    python benchmarks/input.py [--data PATH] [--threads 2] [--batch 64] [--rounds 6] [--folder DIR] [--show DIR]

Same JPEGs (from the page cache), same cores, same work: crop (area 0.08 to 1, aspect 3/4 to 4/3, 10 attempts), resize
to 224, flip, batch. Each arm (peers/) runs in its own process and environment (`make interop`; missing ones are
skipped), tuned by its documentation, and reads its preferred storage. The other arms are idle meanwhile. Only Pillow
averages all source pixels of a new one; only trainstone decodes at half size if an image is twice as large as needed.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from children import Child, is_installed
from interleave import palindromes
from jpeg_folder import make_images

from trainstone.data.recognise import open_dataset
from trainstone.machine.allocator import add_tunables

OURS = "trainstone"
IMAGE_SIZE = 224
BLOCK_SECONDS = 3.5
TRIALS, TRIAL_BATCHES = 3, 8


class Arm(NamedTuple):
    program: str
    environment: str = ""
    """Folder below .interop; empty: the project's own environment."""
    goal: float = 0.0
    """Minimum of trainstone's rate / this arm's rate."""
    variants: tuple[str, ...] = ()
    """Variants to use; empty: the fastest of all."""


ARMS = {
    OURS: Arm("arm_trainstone.py"),
    "tf.data": Arm("arm_tfdata.py", "tensorflow", 1.0),
    "DALI": Arm("arm_dali.py", "dali", 1.4),
    "torch": Arm("arm_torch.py", "", 1.6),
    "MXNet": Arm("arm_mxnet.py", "mxnet", 3.0, ("one iterator",)),
    # With two threads an MXNet iterator decodes on one of two cores: this arm uses both, without a goal.
    "MXNet in parts": Arm("arm_mxnet.py", "mxnet", 0.0, ("one iterator per thread",)),
}


class Pipeline(Child):
    """The process of an arm, with its variants."""

    def __init__(self, name: str, job: dict[str, Any], errors: Path) -> None:
        arm = ARMS[name]
        variables = add_tunables(os.environ) if name == OURS else {}  # as `trainstone bench` restarts itself
        super().__init__(name, arm.program, job, errors, environment=arm.environment, variables=variables)
        self.system = str(self.hello["system"])
        self.variants = list(arm.variants or self.hello["variants"])
        self.variant = self.variants[0]

    def run(self, variant: str, num_batches: int) -> float:
        """Return the seconds per batch."""
        return float(self.request("go", variant, str(num_batches))["seconds"]) / num_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="Data set to read (default: generated).")
    parser.add_argument("--images", type=int, default=2000, help="Number of images; smaller data sets are repeated.")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="Number of threads and cores (default: all)."
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM", help=str([*ARMS]))
    parser.add_argument("--folder", type=Path, default=None, help="Working folder (default: the temporary folder).")
    parser.add_argument("--show", type=Path, default=None, help="Only write sample images of each arm to this folder.")
    options = parser.parse_args()
    # Programs start more threads for reading and copying than configured: limit the cores for all of them.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        job = prepare(Path(name), options)
        installed = [arm for arm in options.arms if is_installed(arm, ARMS[arm].environment)]
        children = [Pipeline(arm, job, Path(name) / f"{arm}.log") for arm in installed]
        seconds = {} if options.show else measure(children, options)
        if options.show:
            show(children, options.show)
        for child in children:
            child.close()
    sys.exit(bool(seconds) and print_results(children, seconds, options.batch))


def prepare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the images in every storage format and return the job description for all arms."""
    raw = folder / "raw/train"
    size_bytes = copy_images(options.data, raw, options.images) if options.data else make_images(raw, options.images)
    convert = [sys.executable, "-m", "trainstone", "data", "convert", "--quiet", str(folder / "raw")]
    for storage in ("recordio", "tfrecord"):
        subprocess.run([*convert, folder / storage, "--format", storage], check=True, stdout=subprocess.DEVNULL)
    print(
        f"{options.images:,} JPEGs of {size_bytes / options.images / 1e3:.0f} kB, batch {options.batch}, "
        f"{options.threads} threads, {options.rounds} rounds of {BLOCK_SECONDS} s"
    )
    return {
        "folder": str(raw),
        "records": str(folder / "recordio"),
        "recordio": str(folder / "recordio/train.rec"),
        "index": str(folder / "recordio/train.idx"),
        "tfrecord": sorted(map(str, (folder / "tfrecord").glob("train-*"))),
        "size": IMAGE_SIZE,
        "batch": options.batch,
        "threads": options.threads,
    }


def copy_images(path: Path, folder: Path, count: int) -> int:
    """Write images from all over a data set, or all of it again and again, into class folders; return their bytes.

    What has no class (detection) gets one of two.
    """
    sources = [split.source for split in open_dataset(path).splits]
    places = [(source, index) for source in sources for index in range(len(source))]
    size_bytes = 0
    for number in range(count):
        source, index = places[number * len(places) // count if len(places) > count else number % len(places)]
        sample = source.read(index)
        if not sample.image.startswith(b"\xff\xd8"):
            sys.exit(f"{source.where(index)} is not a JPEG; some arms decode only JPEGs")
        label = number % 2 if sample.label is None else sample.label
        file = folder / f"{label:05d}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        size_bytes += file.write_bytes(sample.image)
    return size_bytes


def measure(children: list[Pipeline], options: argparse.Namespace) -> dict[str, list[float]]:
    """Run interleaved blocks and return the seconds per batch of each arm's blocks."""
    named = {child.name: child for child in children}
    num_batches = try_variants(children, options.threads)
    seconds: dict[str, list[float]] = {arm: [] for arm in named}
    for arm in palindromes(list(named), options.rounds):
        seconds[arm].append(named[arm].run(named[arm].variant, num_batches[arm]))
    return seconds


def try_variants(children: list[Pipeline], threads: int) -> dict[str, int]:
    """Select the fastest variant of every arm, and return the batches per block of each arm."""
    best: dict[tuple[str, str], float] = {}
    for child in children * TRIALS:
        for variant in child.variants:
            taken = child.run(variant, TRIAL_BATCHES)
            best[child.name, variant] = min(taken, best.get((child.name, variant), taken))
    num_batches = {}
    for child in children:
        child.variant = min(child.variants, key=lambda variant: best[child.name, variant])
        # torch's workers produce one batch each at the same time: a block must be a multiple of the workers.
        turns = max(1, round(BLOCK_SECONDS / best[child.name, child.variant] / threads))
        num_batches[child.name] = turns * threads
    return num_batches


def print_results(children: list[Pipeline], seconds: dict[str, list[float]], batch: int) -> bool:
    """Print the table and return whether a goal was missed."""
    foreign = sorted(share for child in children for share in child.foreign)
    print(
        f"CPU time of other programs: {statistics.median(foreign):.0%} in the median block, {foreign[-1]:.0%} at most"
    )
    for child in children:
        rates = sorted(batch / taken for taken in seconds[child.name])
        spread = f"{rates[0]:7,.0f} to {rates[-1]:7,.0f}"
        print(f"{child.name:14} {statistics.median(rates):7,.0f} images/s, {spread}   {child.system}; {child.variant}")
    missed = False
    for child in children:
        if child.name == OURS or OURS not in seconds:
            continue
        middle, interval = median_ratio(seconds[child.name], seconds[OURS])
        goal = ARMS[child.name].goal
        missed |= middle < goal
        shown = f", goal {goal}" if goal else ""
        print(f"{OURS} / {child.name:14} {middle:.2f} ({interval}){shown}")
    return missed


def median_ratio(theirs: list[float], ours: list[float]) -> tuple[float, str]:
    """Return the median of paired ratios and its interval, from order statistics: robust against a disturbed block."""
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    rounds = len(ratios)
    # The interval excludes `outer` ratios at each end; the chance that it misses the median is binomial (sign test).
    chances = [2 * sum(math.comb(rounds, k) for k in range(outer + 1)) / 2**rounds for outer in range(rounds // 2)]
    allowed = [outer for outer, chance in enumerate(chances) if chance <= 0.05]
    if not allowed:
        return statistics.median(ratios), "no interval below 6 rounds"
    low, high = ratios[allowed[-1]], ratios[-1 - allowed[-1]]
    return statistics.median(ratios), f"95 %: {low:.2f} to {high:.2f}"


def show(children: list[Pipeline], folder: Path) -> None:
    """Write 32 images of each variant as one PNG, to compare them."""
    folder.mkdir(parents=True, exist_ok=True)
    for child in children:
        for variant in child.variants:
            path = folder / f"{child.name}-{variant}.npy".replace(" ", "-")
            child.request("save", variant, str(path))
            images = np.load(path)[:32]
            rows = [np.hstack(list(images[start : start + 8])) for start in range(0, len(images), 8)]
            cv2.imwrite(str(path.with_suffix(".png")), cv2.cvtColor(np.vstack(rows), cv2.COLOR_RGB2BGR))
            print(path.with_suffix(".png"))


if __name__ == "__main__":
    main()
