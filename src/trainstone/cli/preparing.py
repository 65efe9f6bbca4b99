"""What the verbs of `trainstone data` share: flags turned into wishes, a plan carried out with its progress."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainstone.errors import EXIT_INTERRUPTED, ConfigError

if TYPE_CHECKING:
    from trainstone.data.plan import Plan


def start_work(quiet: int) -> None:
    """Warnings to stderr; memory of pictures that were written is kept for the next ones."""
    from trainstone.log import configure_terminal
    from trainstone.machine.allocator import keep_small_memory

    keep_small_memory()
    configure_terminal(verbose=0, quiet=quiet)


@contextmanager
def interruptible(told: str = "; give the same command again to resume") -> Iterator[None]:
    """Ctrl-C ends the work with a word, not with a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted{told}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def count_workers(asked: int | None) -> int:
    """Return how many threads to use: as asked, else one for each core we may use."""
    from trainstone.machine.cpus import read_affinity

    return asked or len(read_affinity()) or os.cpu_count() or 1


def parse_shards(text: str | None, storage: str) -> dict[str, int]:
    if text is None:
        return {}
    if storage == "folder":
        raise ConfigError("--shards divides files of records; the format folder has none")
    parts = text.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise ConfigError(f"--shards {text}: a number, or two for training and validation", hint="--shards 1024,128")
    return dict(zip(("train", "val"), map(int, parts), strict=False))


def parse_size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and 16 <= int(part) <= 4096 for part in parts):
        raise ConfigError(f"--size {text}: pixels from 16 to 4096, once or as WIDTHxHEIGHT", hint="--size 300x200")
    return int(parts[0]), int(parts[-1])


def refuse_inside(source: Path, target: Path) -> None:
    """Refuse to write into the folder that is read: the next reader would take both for one."""
    here, there = source.resolve(), target.resolve()
    if there == here or here in there.parents:
        raise ConfigError(f"{target} lies inside {source}", hint="write beside it, not into it")


def run_plan(plan: "Plan", target: Path, workers: int | None, *, as_json: bool, quiet: int) -> None:
    from trainstone.cli.progress import ProgressLine
    from trainstone.data.prepare import prepare
    from trainstone.machine.ranks import read_rank

    rank = read_rank()
    worked = False
    with ProgressLine(quiet=bool(quiet) or rank.number > 0) as line, interruptible():
        for progress in prepare(plan, target, rank, count_workers(workers)):
            worked = True
            line.show_work(*progress)
    tell_made(target, as_json=as_json, worked=worked)


def tell_made(target: Path, *, as_json: bool, worked: bool) -> None:
    """Print what lies in the target now; of many ranks only the first does."""
    from trainstone.cli.dataset import tell_manifest
    from trainstone.data.manifest import read_manifest
    from trainstone.machine.ranks import read_rank

    rank = read_rank()
    if rank.number > 0:
        return
    manifest = read_manifest(target)
    if manifest is None:
        print(f"rank 0 of {rank.world} has done its part; the last rank to end writes manifest.json")
    else:
        tell_manifest(manifest, target, as_json=as_json, worked=worked)
