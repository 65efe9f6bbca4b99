"""Quick real processes of the command line: a parent that has imported torch once forks them.

Importing torch takes seconds; a run that is killed and resumed, on several ranks, is many processes. The children are
ordinary: own process groups, own signals, `trainstone`'s own main. Unless asked for, they measure no peak, draw no
report page, and fork the child runs of --runs and sweep.
A test file may name one of its own functions: every rank of a world calls it and hands back what it returns, as JSON.
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
from trainstone.machine.allocator import keeping_environment

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
        code = self.nursery.ask({"wait": self.pid})["code"]
        assert code is not None, f"took too long: {self.err.read_text()[-2000:]}"
        return Finished(code, self.out.read_text(), self.err.read_text())


class Nursery:
    """The parent; children that are left when it is closed are killed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._count = 0
        # No launcher of this machine reaches the children.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}
        environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # the command line sets it before it imports torch
        self._parent = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            env=keeping_environment(environment),  # a fork cannot restart itself to keep its memory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        with self._parent as parent:
            assert parent.stdin is not None
            parent.stdin.close()  # it ends its children, and itself
            parent.wait(LIMIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
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
        whole: bool = False,
        prepare: str = "",
    ) -> Child:
        """Start `trainstone` with arguments; `terminal` takes its output, `whole` leaves nothing out.

        `prepare`: what the child does before, in Python.
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
            "whole": whole,
            "prepare": prepare,
        }
        return Child(self, self.ask(question)["pid"], out, err)

    def start_ranks(self, world: int, *arguments: str, prepare: str = "") -> list[Child]:
        if world == 1:
            return [self.start(*arguments, prepare=prepare)]
        same = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        same |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        return [self.start(*arguments, env=same | place, prepare=prepare) for place in places]

    def run(self, *arguments: str, world: int = 1) -> Finished:
        """Run to the end; what the first rank said. All ranks must end alike."""
        ended = [child.wait() for child in self.start_ranks(world, *arguments)]
        assert {one.code for one in ended} == {ended[0].code}, ended
        return ended[0]


@cache
def share_nursery() -> Nursery:
    return Nursery(Path(tempfile.mkdtemp(prefix="trainstone-nursery-")))


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.003)


def run_ranks(world: int, function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Call a function of a file in so many ranks; return what each returned, None of a rank that ended before."""
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
    # A warning is an error here, but for those of torch about itself.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    # What verbs import when they are called, which takes seconds.
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
            # Opened before the answer: a terminal is gone when the test closes its end and nobody else has it open.
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
    """A child run as machine/supervisor.py starts it by subprocess.Popen, but forked from this process."""

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
            question = {"arguments": words, "env": env, "cwd": ".", "ignore": (), "whole": True, "prepare": ""}
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
    """Stand in for subprocess.Popen: fork child runs, start everything else."""
    from trainstone.flows.child_runs import TRAINSTONE

    if tuple(command[: len(TRAINSTONE)]) != TRAINSTONE:
        return subprocess.Popen(command, **options)
    return ForkedRun(command[len(TRAINSTONE) :], options["env"], options["stdout"].fileno(), options["preexec_fn"])


def leave_out() -> None:
    import trainstone.cli.execute
    import trainstone.machine.supervisor
    from trainstone.flows import observation
    from trainstone.measure.peaks import Peaks

    vars(trainstone.cli.execute)["write_page"] = lambda _run: None
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": start_process})
    vars(trainstone.machine.supervisor)["subprocess"] = forking
    trainstone.machine.supervisor.POLL_SECONDS = 0.05
    vars(observation)["measure_peaks"] = lambda _device, _precision: Peaks(1e12, "not measured", 1e10)


def wait_for(pid: int, seconds: float = LIMIT) -> int | None:
    """Return a child's exit code, minus the signal that killed it; None: it still runs."""
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
        os.closerange(3, 1000)  # as a new process has it
        # Those of the parent remember what kind of file they were.
        encoding = question["env"].get("PYTHONIOENCODING", "utf-8")
        sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, encoding=encoding, closefd=False) for n in (1, 2))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(question["cwd"])
        os.environ |= question["env"]
        sys.argv = ["trainstone", *question["arguments"]]
        if not question["whole"]:
            leave_out()
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
