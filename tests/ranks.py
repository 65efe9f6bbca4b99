"""Real processes that are ranks of one world, with the environment torchrun would give them.

A test file names one of its own functions; every rank calls it and hands back what it returns, as JSON. Importing torch
takes seconds a process: one such function should do all checks of a file, and tests look at what it returned.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command import LIMIT, ROOT

if TYPE_CHECKING:
    from trainstone.config.learning import ParallelConfig
    from trainstone.train.distributed import World

# argv: file, function, where to write, arguments
CALL = """
import importlib.util, json, pathlib, sys
file, function, answer, arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location("rank_program", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
pathlib.Path(answer).write_text(json.dumps(getattr(module, function)(*json.loads(arguments))))
"""


def run_ranks(world: int, function: Callable[..., Any], folder: Path, *arguments: Any, **environment: str) -> list[Any]:
    """Call a function of a file in so many ranks and return what each returned; None from a rank that left no answer.

    Fails with what was said on stderr if a rank fails, and ends all ranks if one fails or takes too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = find_free_port()
    started = []
    try:
        for number in range(world):
            started.append(start_rank(number, world, port, function, folder, arguments, environment))
        wait_for_all(started, folder)
    finally:
        for process in started:
            process.kill()
            process.wait()
    answers = [folder / f"rank{number}.json" for number in range(world)]
    return [json.loads(answer.read_text()) if answer.exists() else None for answer in answers]


def start_rank(
    number: int,
    world: int,
    port: int,
    function: Callable[..., Any],
    folder: Path,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
) -> subprocess.Popen[bytes]:
    torchrun = {
        "RANK": str(number),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(number),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    answer = folder / f"rank{number}.json"
    answer.unlink(missing_ok=True)
    file = function.__code__.co_filename
    command = [sys.executable, "-W", "error", "-c", CALL, file, function.__name__, str(answer), json.dumps(arguments)]
    with (folder / f"rank{number}.err").open("wb") as err:
        return subprocess.Popen(command, env={**os.environ, **torchrun, **environment}, stdout=err, stderr=err)


def wait_for_all(started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    end = time.monotonic() + LIMIT
    while True:
        codes = [process.poll() for process in started]
        failed = [number for number, code in enumerate(codes) if code not in (None, 0)]
        late = time.monotonic() > end
        if failed or late:
            said = "\n".join(
                f"--- rank {number}, code {code}\n{(folder / f'rank{number}.err').read_text(errors='replace')[-3000:]}"
                for number, code in enumerate(codes)
            )
            raise AssertionError(f"{'took too long' if late else f'rank {failed} failed'}\n{said}")
        if None not in codes:
            return
        time.sleep(0.02)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def join_world(parallel: "ParallelConfig") -> "Iterator[World]":
    """Meet the other ranks on the CPU, with no run."""
    from trainstone.config.load import load_config
    from trainstone.train.preflight.group import meet_all

    config = load_config("demo-classify").model_copy(update={"parallel": parallel, "device": "cpu"})
    with meet_all(config, None) as world:
        yield world
