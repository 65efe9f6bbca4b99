"""Helpers for tests of the command line: repository path, small networks, results of commands."""

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
"""Seconds that a test waits for anything before it fails; on any machine only a hang takes so long."""
# A network small enough for a test: about 20 ms per step on two cores.
TINY = ("device=cpu", "model.depth=18", "data.image_size=32", "train.batch_size=2", "train.precision=fp32")
# A quarter as wide, for tests that do not check step phases. Not narrower: with fewer than 16 channels oneDNN writes
# out of bounds in strided 1x1 convolutions (uxlfoundation/oneDNN issue 6035).
# One thread: two threads wait for each other if another process uses a core.
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
    """Copy a run of tests/golden with old file times: a run with new files would count as running."""
    path = shutil.copytree(ROOT / "tests/golden" / case, folder / case)
    for copied in (path, *path.rglob("*")):
        os.utime(copied, (1e9, 1e9))
    return path


def find_run(folder: Path) -> Path:
    runs = folder / "runs" if (folder / "runs").is_dir() else folder
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    return run
