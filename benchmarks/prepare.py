"""Speed of packing images into RecordIO without re-encoding: trainstone, `cat`, MXNet's im2rec, interleaved.

    python benchmarks/prepare.py [--images 20000] [--rounds 5] [--folder DIR]

`cat` of the same files is the minimum for any tool; `cat + fsync` also syncs them to disk, as trainstone does before
renaming a file. im2rec comes from the interop environment (`make interop`); without it that arm is skipped.
Goals: at least 80 % of `cat`, at least 2 x im2rec. Needs three times the images' size (2.2 GB for 20,000) of disk.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interleave import palindromes, ratio
from jpeg_folder import make_images

ROOT = Path(__file__).parent.parent
GOALS = {"cat": 0.8, "im2rec": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="Working folder (default: the temporary folder).")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size_bytes = make_images(folder / "raw", options.images)
        print(f"{options.images:,} JPEGs, {size_bytes / 1e9:.2f} GB, {os.cpu_count()} cores, {options.rounds} rounds")
        arms = {"cat": run_cat, "cat + fsync": run_cat_to_disk, "trainstone": run_trainstone}
        if find_im2rec() is not None:
            arms["im2rec"] = run_im2rec
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for arm in arms:  # warm up page cache and compiled code
            measure(arms[arm], folder)
        for arm in palindromes(list(arms), options.rounds):
            seconds[arm].append(measure(arms[arm], folder))
    for arm, taken in seconds.items():
        rates = sorted(options.images / each for each in taken)
        print(f"{arm:12} {rates[0]:8,.0f} to {rates[-1]:8,.0f} images/s, median {rates[len(rates) // 2]:8,.0f}")
    ours = seconds.pop("trainstone")
    missed = False
    for arm, taken in seconds.items():
        middle, low, high = ratio(taken, ours)
        goal = GOALS.get(arm, 0.0)
        missed |= middle < goal
        shown = f", goal {goal}" if goal else ""
        print(f"trainstone / {arm:12} {middle:.2f} (95 %: {low:.2f} to {high:.2f}){shown}")
    sys.exit(missed)


def measure(arm, folder: Path) -> float:
    """Return the seconds an arm needs to write into a new folder; pending writes are synced before."""
    out = folder / "out"
    out.mkdir()
    os.sync()
    begin = time.perf_counter()
    arm(folder / "raw", out)
    taken = time.perf_counter() - begin
    shutil.rmtree(out)
    return taken


def run_cat(raw: Path, out: Path) -> None:
    with (out / "all").open("wb") as file:
        find = subprocess.Popen(["find", raw, "-type", "f", "-print0"], stdout=subprocess.PIPE)
        subprocess.run(["xargs", "-0", "cat"], stdin=find.stdout, stdout=file, check=True)
        find.wait()


def run_cat_to_disk(raw: Path, out: Path) -> None:
    run_cat(raw, out)
    subprocess.run(["sync", out / "all"], check=True)


def run_trainstone(raw: Path, out: Path) -> None:
    command = [sys.executable, "-m", "trainstone", "data", "imagenet", "--dataset", "folder", "--quiet"]
    subprocess.run([*command, "--from", raw, "--to", out / "set"], check=True, stdout=subprocess.DEVNULL)


def find_im2rec() -> tuple[Path, Path] | None:
    """Return the interpreter and the script of MXNet's tool."""
    interop = Path(os.environ.get("TRAINSTONE_INTEROP", ROOT / ".interop"))
    scripts = list(interop.glob("mxnet/lib/python3*/site-packages/mxnet/tools/im2rec.py"))
    return (interop / "mxnet/bin/python", scripts[0]) if scripts else None


def run_im2rec(raw: Path, out: Path) -> None:
    found = find_im2rec()
    assert found is not None
    threads = str(os.cpu_count())
    for step in (["--list", "--recursive"], ["--pass-through", "--num-thread", threads]):
        subprocess.run([*found, *step, out / "train", raw], check=True, capture_output=True)


if __name__ == "__main__":
    main()
