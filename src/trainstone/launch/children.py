"""Runs trainstone in child processes, one after the other; bench --runs, which gathers their run folders.

A child of its own, because a CPU out of memory is a SIGKILL and because two runs must not share a warm process.
"""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, LaunchError, TrainstoneError, error_of_child
from trainstone.log import log_into
from trainstone.machine.interrupt import Interrupt
from trainstone.machine.launched import without_launch
from trainstone.results.checks import finding
from trainstone.results.progress import Progress
from trainstone.results.repeat import combine_runs
from trainstone.results.schema import Point, Result
from trainstone.results.store import RunFolder, read_result

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
CTRL_C_GRACE_SECONDS = 10.0
END_SECONDS = 5.0
"""For a child to end by itself when its parent must not wait for it any longer."""
TRAINSTONE = (sys.executable, "-P", "-m", "trainstone")


class Ended(NamedTuple):
    """How a child ended."""

    code: int
    """Exit code, or minus the signal that ended it."""
    output: str
    errors: str

    @property
    def interrupted(self) -> bool:
        """Whether somebody stopped it."""
        return self.code in (EXIT_INTERRUPTED, EXIT_RESUMABLE)


def child_command(verb: str, config_file: Path, out: Path, *, strict: bool) -> list[str]:
    """Return the command line of a child that prints its result."""
    command = [*TRAINSTONE, verb, str(config_file), "--out", str(out), "--json", "--quiet"]
    return [*command, "--strict"] if strict else command


def seeded_command(verb: str, config_file: Path, out: Path, seed: int, *, strict: bool) -> list[str]:
    """Return the command line of one of --runs."""
    return [*child_command(verb, config_file, out, strict=strict), "--seed", str(seed)]


def repeat_bench(config: Config, run: RunFolder, num_runs: int, *, strict: bool) -> Iterator[Progress]:
    """Run the same thing num_runs times with seeds counted up; write the combined result into `run`.

    The first child resolves every auto, the others repeat its resolved configuration.
    """
    children: list[Result] = []
    with Interrupt() as interrupt, log_into(run.path / "log.txt"):
        for number in range(num_runs):
            label = f"run {number + 1} of {num_runs}"
            seed = config.seed + number
            command = seeded_command("bench", run.path / "config.toml", run.path / "points", seed, strict=strict)
            ended = yield from run_child(command, label, interrupt)
            child = _read_repeated(ended, label, run)
            children.append(child)
            if number == 0:
                run.write_config(load_config(str(run.path / "points" / child.run_id / "config.toml")))
                run.write_machine(child.machine, child.software)
                run.update(devices=child.devices)
            points = [Point(label=f"seed {c.config['seed']}", run=f"points/{c.run_id}") for c in children]
            run.update(points=points, **combine_runs(children))
            if interrupt.asked or child.status == "interrupted":
                stopped = finding("interrupted", f"stopped after {len(children)} of {num_runs} runs")
                run.update(status="interrupted", findings=[stopped, *run.result.findings])
                return
    run.update(status="ok")


def _read_repeated(ended: Ended, label: str, run: RunFolder) -> Result:
    if ended.interrupted and not ended.output:  # before it had measured anything
        run.update(status="interrupted")
        raise KeyboardInterrupt
    if ended.code not in (0, EXIT_INTERRUPTED):
        error = explain_failure(label, ended)
        run.update(status="failed", findings=[finding("child-failed", error.message, hint=error.hint)])
        raise error
    return read_child(ended, run.path)


def run_child(command: list[str], label: str, interrupt: Interrupt) -> Generator[Progress, None, Ended]:
    """Run a command to its end; whoever asks to stop is heard, and the child told."""
    log.info("starting %s", shlex.join(command))
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=without_launch(os.environ)) as child,
        no_survivor(child),
    ):
        told_to_stop, asked_seconds = False, 0.0
        while True:
            try:
                output, errors = child.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                yield Progress(label)
            asked_seconds += POLL_SECONDS if interrupt.asked else 0.0
            # A terminal's Ctrl-C reaches the child by itself; a second signal could end it before it has written.
            due = interrupt.asked not in (None, "SIGINT") or asked_seconds > CTRL_C_GRACE_SECONDS
            if due and not told_to_stop:
                child.terminate()
                told_to_stop = True
    log.info("%s ended with %d %s", label, child.returncode, errors.strip())
    return Ended(child.returncode, output, errors)


@contextmanager
def no_survivor(child: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no child behind where its parent ends early: on a second Ctrl-C, or on a fault of its own."""
    try:
        yield
    except BaseException:
        child.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
        finally:  # whoever is out of patience now, too
            child.kill()
        raise


def read_child(ended: Ended, folder: Path) -> Result:
    """Read the run that a child printed, from points/ of the folder."""
    return read_result(folder / "points" / json.loads(ended.output)["run_id"])


def explain_failure(label: str, ended: Ended) -> TrainstoneError:
    """Return the error that a child ended with, of its class and with its hint."""
    if ended.code < 0:
        name = name_signal(-ended.code)
        hint = (
            "SIGKILL mostly means that memory ran out: take a smaller train.batch_size" if name == "SIGKILL" else None
        )
        return LaunchError(f"{label} was ended by {name}", hint=hint)
    told = dict(line.split(":", 1) for line in ended.errors.splitlines() if line.startswith(("error:", "hint:")))
    message = told.get("error", f" ended with exit code {ended.code}: {ended.errors.strip()[-500:]}")
    return error_of_child(ended.code, f"{label}:{message}", told.get("hint", "").strip() or None)


def name_signal(number: int) -> str:
    """Return SIGTERM for 15; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
