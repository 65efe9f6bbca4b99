"""Speed of JPEG input pipelines: trainstone, tf.data, DALI, torch's DataLoader with Pillow, MXNet, interleaved.

    python benchmarks/input.py [--data PATH] [--threads 2] [--batch 64] [--rounds 6] [--folder DIR] [--show DIR]

Same JPEGs (from the page cache), same cores, same work: crop (area 0.08 to 1, aspect 3/4 to 4/3, 10 attempts), resize
to 224, flip, batch. Each arm (peers/) runs in its own process and environment (`make interop`; missing ones are
skipped), tuned by its documentation, and reads its preferred storage. The other arms are idle meanwhile. Only Pillow
averages all source pixels of a new one; only trainstone decodes at half size if an image is twice as large as needed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import psutil
from interleave import palindromes
from jpeg_folder import make_images

from trainstone.data.recognise import open_dataset
from trainstone.machine.allocator import add_tunables

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
ROOT = Path(__file__).parent.parent
PEERS = Path(__file__).parent / "peers"
OURS = "trainstone"
IMAGE_SIZE = 224
BLOCK_SECONDS = 3.5
TRIALS, TRIAL_BATCHES = 3, 8
# An arm that still uses CPU after this time has background work.
QUIET_SECONDS, MAX_WAIT_SECONDS = 0.2, 10.0


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


class Child:
    """The process of an arm."""

    def __init__(self, name: str, job: dict[str, Any], errors: Path) -> None:
        self.name, self.errors = name, errors
        environment = {**os.environ, **QUIET}
        if name == OURS:  # as `trainstone bench` restarts itself
            environment = add_tunables(environment)
        command = [str(find_python(name)), str(PEERS / ARMS[name].program), json.dumps(job)]
        pipe = subprocess.PIPE
        with errors.open("w") as file:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=environment)
        hello = self.read_answer()
        self.system = str(hello["system"])
        self.variants = list(ARMS[name].variants or hello["variants"])
        self.variant = self.variants[0]
        self.foreign: list[float] = []
        """Share of the CPU time used by other programs and virtual machines, per block."""

    def request(self, *words: str) -> dict[str, Any]:
        """Send a command, wait for the answer and until the arm is idle again."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.read_answer()
        self.wait_idle()
        return answer

    def read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended:\n{self.errors.read_text()[-3000:]}")
        return dict(json.loads(line))

    def wait_idle(self) -> None:
        """Wait until the arm is idle; prefetching would disturb the next arm."""
        process = psutil.Process(self.process.pid)
        end = time.monotonic() + MAX_WAIT_SECONDS
        while time.monotonic() < end:
            before = process.cpu_times()
            time.sleep(QUIET_SECONDS)
            after = process.cpu_times()
            if not process.children() and after.user + after.system - before.user - before.system < 0.02:
                return
        sys.exit(f"{self.name} is still working {MAX_WAIT_SECONDS:.0f} s after its block; it would disturb the others")

    def run(self, variant: str, num_batches: int) -> float:
        """Return the seconds per batch."""
        machine, own = psutil.cpu_times(), sum(psutil.Process(self.process.pid).cpu_times()[:4])
        seconds = float(self.request("go", variant, str(num_batches))["seconds"])
        spent, own = psutil.cpu_times(), sum(psutil.Process(self.process.pid).cpu_times()[:4]) - own
        total, idle = sum(spent) - sum(machine), spent.idle + spent.iowait - machine.idle - machine.iowait
        self.foreign.append(max(0.0, 1 - (idle + own) / total))
        return seconds / num_batches


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
        children = [Child(arm, job, Path(name) / f"{arm}.log") for arm in options.arms if is_installed(arm)]
        seconds = {} if options.show else measure(children, options)
        if options.show:
            show(children, options.show)
        for child in children:
            child.process.communicate()
    sys.exit(bool(seconds) and print_results(children, seconds, options.batch))


def is_installed(arm: str) -> bool:
    """Return whether an arm's environment exists; print a message if not."""
    if find_python(arm).exists():
        return True
    print(f"{arm} is skipped: {find_python(arm)} not found (run make interop, or set TRAINSTONE_INTEROP)")
    return False


def find_python(arm: str) -> Path:
    """Return the interpreter of an arm's environment."""
    if not ARMS[arm].environment:
        return Path(sys.executable)
    return Path(os.environ.get("TRAINSTONE_INTEROP", ROOT / ".interop")) / ARMS[arm].environment / "bin/python"


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


def measure(children: list[Child], options: argparse.Namespace) -> dict[str, list[float]]:
    """Run interleaved blocks and return the seconds per batch of each arm's blocks."""
    named = {child.name: child for child in children}
    num_batches = try_variants(children, options.threads)
    seconds: dict[str, list[float]] = {arm: [] for arm in named}
    for arm in palindromes(list(named), options.rounds):
        seconds[arm].append(named[arm].run(named[arm].variant, num_batches[arm]))
    return seconds


def try_variants(children: list[Child], threads: int) -> dict[str, int]:
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


def print_results(children: list[Child], seconds: dict[str, list[float]], batch: int) -> bool:
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


def show(children: list[Child], folder: Path) -> None:
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
