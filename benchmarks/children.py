"""Shared by the comparisons with other systems: child processes that answer each request with one line of JSON.

Each child runs in the environment of its system (`make interop`, or $TRAINSTONE_INTEROP) and is idle between requests.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
PEERS = Path(__file__).parent / "peers"
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
# A child that still uses CPU after this time has background work.
QUIET_SECONDS, MAX_WAIT_SECONDS = 0.2, 10.0


def find_python(environment: str) -> Path:
    """Return the interpreter of an environment below .interop; empty: the project's own."""
    if not environment:
        return Path(sys.executable)
    return Path(os.environ.get("TRAINSTONE_INTEROP", ROOT / ".interop")) / environment / "bin/python"


def is_installed(arm: str, environment: str) -> bool:
    """Return whether an arm's environment exists; print a message if not."""
    if find_python(environment).exists():
        return True
    print(f"{arm} is not run here: {find_python(environment)} not found (run make interop, or set TRAINSTONE_INTEROP)")
    return False


class ChildEnded(SystemExit):
    """The process ended before it answered: ends the benchmark with this message unless it is caught."""


class Child:
    """The process of an arm, with `variables` added to its environment variables."""

    def __init__(
        self,
        name: str,
        program: str,
        job: Mapping[str, Any],
        errors: Path,
        *,
        environment: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.errors = name, errors
        variables = {**os.environ, **SETTINGS, **variables}
        if not environment:
            variables["PYTHONPATH"] = str(ROOT / "src")
        command = [str(find_python(environment)), str(PEERS / program), json.dumps(job)]
        pipe = subprocess.PIPE
        with errors.open("w") as file:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=variables)
        self.hello = self.read_answer()
        """What the child reports when it is ready."""
        self.foreign: list[float] = []
        """Share of the CPU time used by other programs and virtual machines, per request."""

    def request(self, *words: str) -> dict[str, Any]:
        """Send a command, wait for the answer and until the child is idle again."""
        assert self.process.stdin is not None
        machine, own = psutil.cpu_times(), self.count_cpu_seconds()
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.read_answer()
        self.wait_idle()
        spent, own = psutil.cpu_times(), self.count_cpu_seconds() - own
        total, idle = sum(spent) - sum(machine), spent.idle + spent.iowait - machine.idle - machine.iowait
        self.foreign.append(max(0.0, 1 - (idle + own) / total))
        return answer

    def count_cpu_seconds(self) -> float:
        """Return the CPU time of the process and its finished children."""
        return float(sum(psutil.Process(self.process.pid).cpu_times()[:4]))

    def read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ChildEnded(f"{self.name} ended:\n{self.errors.read_text()[-3000:]}")
        return dict(json.loads(line))

    def wait_idle(self) -> None:
        """Wait until the process is idle; prefetching or waiting threads would disturb the next arm."""
        process = psutil.Process(self.process.pid)
        end = time.monotonic() + MAX_WAIT_SECONDS
        while time.monotonic() < end:
            before = process.cpu_times()
            time.sleep(QUIET_SECONDS)
            after = process.cpu_times()
            if not process.children() and after.user + after.system - before.user - before.system < 0.02:
                return
        sys.exit(f"{self.name} is still working {MAX_WAIT_SECONDS:.0f} s after its block; it would disturb the others")

    def close(self) -> None:
        self.process.communicate()
