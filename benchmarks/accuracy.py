"""Accuracy on a small machine: train Tiny-ImageNet from scratch to the end of the schedule, without a target.

    python benchmarks/accuracy.py DATA [--seed N] [--image FILE.png] [--runs FOLDER]

Trains the recipe `tiny-imagenet` without a target, to get the whole curve. Prints accuracy over epochs and minutes, the
times of 65 % and 70 % top-1, and the noise grade. Exits with 1 if 65 % was not reached within 25 minutes. Needs two
idle cores for half an hour.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import altair as alt

LEVELS = (0.65, 0.70)
MAX_SECONDS = 25 * 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = train(options.data, options.seed, options.runs or Path(folder))
    history = result["quality"]["history"]
    print_curve(history)
    reached = {level: find_reached(history, level) for level in LEVELS}
    for level, seconds in reached.items():
        print(f"{level:.0%}     " + (f"after {seconds / 60:.1f} minutes" if seconds is not None else "not reached"))
    print(f"speed   {result['throughput']['images_per_second']:.0f} images/s; noise grade {result['noise']['grade']}")
    print(f"verdict {result['verdict']}")
    if options.image:
        draw(history).save(options.image, scale_factor=2)
    first = reached[LEVELS[0]]
    sys.exit(first is None or first > MAX_SECONDS)


def train(data: Path, seed: int, out: Path) -> dict[str, Any]:
    """Train in a child process, through the command line; a target of 1.0 is never reached."""
    command = [sys.executable, "-m", "trainstone", "train", "tiny-imagenet", "--data", str(data), "--out", str(out)]
    command += ["--seed", str(seed), "--set", "eval.target=1.0", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def find_reached(history: list[dict[str, Any]], level: float) -> float | None:
    """Return when top-1 was first at a level, on the run's clock."""
    return next((one["seconds"] for one in history if one["metrics"]["top1"] >= level), None)


def print_curve(history: list[dict[str, Any]]) -> None:
    """Print one line per evaluation."""
    print("epoch  minutes   top-1   top-5")
    for one in history:
        top1, top5 = one["metrics"]["top1"], one["metrics"]["top5"]
        print(f"{one['epoch']:5.1f}  {one['seconds'] / 60:7.1f}  {top1:6.1%}  {top5:6.1%}")


def draw(history: list[dict[str, Any]]) -> alt.TopLevelMixin:
    """Return a chart of accuracy over minutes, with the levels."""
    rows = [{"minutes": one["seconds"] / 60, "top-1 %": 100 * one["metrics"]["top1"]} for one in history]
    axes = {"x": alt.X("minutes:Q"), "y": alt.Y("top-1 %:Q", scale=alt.Scale(zero=False))}
    curve = alt.Chart(alt.Data(values=rows)).mark_line(point=True).encode(**axes)
    levels = alt.Chart(alt.Data(values=[{"top-1 %": 100 * level} for level in LEVELS])).mark_rule(strokeDash=[4, 4])
    return (curve + levels.encode(y="top-1 %:Q")).properties(width=560, height=300)


if __name__ == "__main__":
    main()
