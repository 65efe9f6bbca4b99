"""Fast processes of the real command line: a parent process that has imported torch once forks them.

Importing torch takes seconds, and tests of resumed runs on several ranks start many processes. The children have their
own process groups and signals and run `trainstone`'s main. By default they skip peak measurement and report page, and
fork the child runs of --runs and sweep. `run_ranks` calls a function of a test file on every rank and returns the
results as JSON.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.processes.command import LIMIT, ROOT, Finished, find_free_port
from trainstone.machine.allocator import add_tunables

if TYPE_CHECKING:
    from trainstone.config.schema import ParallelConfig
    from trainstone.engine.distributed.collectives import World

LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI", "MPI_", "TRAINSTONE_")
CALL = """
import importlib.util, json, os, pathlib
spec = importlib.util.spec_from_file_location("rank_program", {file!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
answer = module.{function}(*{arguments!r})
pathlib.Path({folder!r}, "rank" + os.environ.get("RANK", "0") + ".json").write_text(json.dumps(answer))
raise SystemExit
"""


@dataclass
class Child:
    nursery: "Nursery"
    pid: int
    out: Path
    err: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Finished:
        code = self.nursery.request({"wait": self.pid})["code"]
        assert code is not None, f"took too long: {self.err.read_text()[-2000:]}"
        return Finished(code, self.out.read_text(), self.err.read_text())


class Nursery:
    """The parent process; close() kills the remaining children."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._count = 0
        # Remove this machine's launcher variables.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))  # src: another checkout may be installed
        environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # the command line sets it before it imports torch
        self._parent = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            env=add_tunables(environment),  # a fork cannot restart itself to set them
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        with self._parent as parent:
            assert parent.stdin is not None
            parent.stdin.close()  # ends the parent and its children
            parent.wait(LIMIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def request(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._parent.stdin
        assert self._parent.stdout
        self._parent.stdin.write(json.dumps(question) + "\n")
        self._parent.stdin.flush()
        answer: dict[str, Any] = json.loads(self._parent.stdout.readline())
        return answer

    def start(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        ignore: Sequence[int] = (),
        cwd: Path | None = None,
        terminal: str | None = None,
        with_report: bool = False,
        prepare: str = "",
    ) -> Child:
        """Start `trainstone` with arguments; its output goes to `terminal` if given.

        `with_report`: measure the peak and write the page. `prepare`: Python code that the child executes first.
        """
        self._count += 1
        out, err = (self.folder / f"{self._count}.{kind}" for kind in ("out", "err"))
        out.touch()
        err.touch()
        question = {
            "arguments": arguments,
            "env": {"TRAINSTONE_CACHE": str(self.folder / "cache"), **(env or {})},
            "cwd": str(cwd or self.folder),
            "out": terminal or str(out),
            "err": terminal or str(err),
            "ignore": list(ignore),
            "with_report": with_report,
            "prepare": prepare,
        }
        return Child(self, self.request(question)["pid"], out, err)

    def start_ranks(self, world: int, *arguments: str, prepare: str = "") -> list[Child]:
        if world == 1:
            return [self.start(*arguments, prepare=prepare)]
        same = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        same |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        return [self.start(*arguments, env=same | place, prepare=prepare) for place in places]

    def run(self, *arguments: str, world: int = 1) -> Finished:
        """Run to the end and return rank 0's result; all ranks must have the same exit code."""
        ended = [child.wait() for child in self.start_ranks(world, *arguments)]
        assert {one.code for one in ended} == {ended[0].code}, ended
        return ended[0]


@cache
def share_nursery() -> Nursery:
    return Nursery(Path(tempfile.mkdtemp(prefix="trainstone-nursery-")))


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"condition not met within {LIMIT:.0f} s"
        time.sleep(0.003)


def run_ranks(world: int, function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Call a function on every rank of a new world; return each rank's result, None for a rank that ended early."""
    folder.mkdir(parents=True, exist_ok=True)
    name, file = function.__name__, function.__code__.co_filename
    call = CALL.format(file=file, function=name, arguments=arguments, folder=str(folder))
    ended = [child.wait() for child in share_nursery().start_ranks(world, prepare=call)]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.out + one.err for one in ended)
    answers = [folder / f"rank{number}.json" for number in range(world)]
    return [json.loads(answer.read_text()) if answer.exists() else None for answer in answers]


@contextmanager
def join_world(parallel: "ParallelConfig") -> "Iterator[World]":
    from trainstone.config.load import load_config
    from trainstone.engine.distributed.rendezvous import connect_ranks

    config = load_config("demo-classify").model_copy(update={"parallel": parallel, "device": "cpu"})
    with connect_ranks(config, None) as world:
        yield world


def serve() -> None:
    # Warnings are errors here, except torch's own deprecation warnings.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    # Modules that commands import lazily, which takes seconds.
    import altair  # noqa: F401
    import torch._inductor  # noqa: F401

    import trainstone.flows.compare.pair
    import trainstone.flows.profile.run
    import trainstone.flows.train.loop  # noqa: F401
    from trainstone.cli.main import main

    children: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = {"code": wait_for(question["wait"])}
            children.discard(question["wait"])
        else:
            # Opened before the answer: a terminal vanishes when the test closes the last open end.
            outputs = [os.open(question[kind], os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY) for kind in ("out", "err")]
            pid = os.fork()
            if pid == 0:
                be_child(question, outputs, main)
            for descriptor in outputs:
                os.close(descriptor)
            children.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class ForkedRun:
    """A child run like subprocess.Popen in machine/supervisor.py, but forked from this process."""

    returncode: int | None = None

    def __init__(self, words: Sequence[str], env: dict[str, str], output: int, prepare: Callable[[], None]) -> None:
        from trainstone.cli.main import main

        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            prepare()
            os.environ.clear()
            question = {"arguments": words, "env": env, "cwd": ".", "ignore": (), "with_report": True, "prepare": ""}
            be_child(question, [output, os.dup(output)], main)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = wait_for(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float = LIMIT) -> int:
        if self.returncode is None:
            self.returncode = wait_for(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("child run", timeout)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


def start_process(command: Sequence[str], **options: Any) -> ForkedRun | subprocess.Popen[bytes]:
    """Replacement of subprocess.Popen: fork child runs, start all other commands normally."""
    from trainstone.flows.child_runs import TRAINSTONE

    if tuple(command[: len(TRAINSTONE)]) != TRAINSTONE:
        return subprocess.Popen(command, **options)
    return ForkedRun(command[len(TRAINSTONE) :], options["env"], options["stdout"].fileno(), options["preexec_fn"])


def skip_slow_parts() -> None:
    import trainstone.cli.execute
    import trainstone.machine.supervisor
    from trainstone.flows import observation
    from trainstone.measure.peaks import Peaks

    vars(trainstone.cli.execute)["write_page"] = lambda _run: None
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": start_process})
    vars(trainstone.machine.supervisor)["subprocess"] = forking
    trainstone.machine.supervisor.POLL_SECONDS = 0.05
    vars(observation)["measure_peaks"] = lambda *_: Peaks(1e12, "not measured", 1e10)


def wait_for(pid: int, seconds: float = LIMIT) -> int | None:
    """Return a child's exit code (negative: the signal that killed it), or None if it is still running."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def be_child(question: dict[str, Any], outputs: list[int], main: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        for number in question["ignore"]:
            signal.signal(number, signal.SIG_IGN)
        for number, descriptor in zip((1, 2), outputs, strict=True):
            os.dup2(descriptor, number)
        os.closerange(3, 1000)  # like in a new process
        # New file objects: the parent's have cached the kind of file.
        encoding = question["env"].get("PYTHONIOENCODING", "utf-8")
        sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, encoding=encoding, closefd=False) for n in (1, 2))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(question["cwd"])
        os.environ |= question["env"]
        sys.argv = ["trainstone", *question["arguments"]]
        if not question["with_report"]:
            skip_slow_parts()
        exec(question["prepare"], {})
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
