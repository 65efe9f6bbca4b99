"""The real command line, for tests: where the repository is, a network small enough, what a command left behind."""

import json
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT = 600.0
"""Seconds that a test waits for anything before it fails: only hangs take so long, on the slowest machine too."""
# A network small enough for a test: some 20 ms a step on two cores.
TINY = ("device=cpu", "model.depth=18", "data.image_size=32", "train.batch_size=2", "train.precision=fp32")
# A quarter as wide, for tests that do not look at shares of a step. Not narrower: with fewer than 16 channels oneDNN
# writes past its memory in strided 1x1 convolutions (uxlfoundation/oneDNN issue 6035).
# One thread: two wait for each other wherever another process takes a core.
NARROW = (*TINY, "model.width=16", "engine.threads=1")


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def tiny_arguments() -> list[str]:
    return [argument for setting in (*TINY, "engine.threads=1") for argument in ("--set", setting)]


def narrow_arguments() -> list[str]:
    return [argument for setting in NARROW for argument in ("--set", setting)]


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainstone", *arguments]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def copy_golden(folder: Path, case: str) -> Path:
    """Copy a run of tests/golden and make its files old: git keeps no times, and a run with fresh files lives."""
    path = shutil.copytree(ROOT / "tests/golden" / case, folder / case)
    for copied in (path, *path.rglob("*")):
        os.utime(copied, (1e9, 1e9))
    return path


def find_run(folder: Path) -> Path:
    runs = folder / "runs" if (folder / "runs").is_dir() else folder
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    return run
