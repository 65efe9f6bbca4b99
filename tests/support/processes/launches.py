"""Training runs that are killed and resumed: with `trainstone launch`, or as forked ranks."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from support.builders.training_runs import TrainedRun, make_config, read_trained_run, set_arguments
from support.processes.command import LIMIT, command_line, find_run
from support.processes.forked import LAUNCHERS, Child, Nursery, wait_until
from trainstone.config.schema import System
from trainstone.launch.verb import Verb
from trainstone.results.run_folder import read_result

STEPS, EVERY = 48, 4


def train_words(out: Path, recipe: str = "demo-classify", **changes: Any) -> list[str]:
    requested = {"stop__epochs": STEPS * 2 / 12, "checkpoint__every_steps": EVERY, "checkpoint__keep": 2, **changes}
    settings = set_arguments(**requested)
    return ["train", recipe, *settings, "--out", str(out)]


def make_verb(
    *arguments: str,
    name: str = "train",
    device: str = "cpu",
    out: Path = Path("runs"),
    resume: Path | None = None,
    system: System | None = None,
) -> Verb:
    config = make_config(device=device)
    return Verb(name, arguments, config, out, resume, system, as_json=False, quiet=False, dry_run=False)


def start_launch(cwd: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    kept |= {"OMP_NUM_THREADS": "1", "TRAINSTONE_CACHE": os.environ["TRAINSTONE_CACHE"], **(env or {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(command_line("launch", *words), cwd=cwd, env=kept, stdout=pipe, stderr=pipe, text=True)


def finish(launched: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    output, errors = launched.communicate(timeout=LIMIT)
    assert launched.returncode == code, output + errors
    return output, errors


def find_launched(out: Path) -> list[tuple[psutil.Process, int | None]]:
    """Find all processes of launches below a folder, including launchers and children of ranks; ranks have a number."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("TRAINSTONE_RUN", "").startswith(f"{out}/") and process.status() != psutil.STATUS_ZOMBIE:
                number = environment.get("RANK", environment.get("OMPI_COMM_WORLD_RANK"))
                # A rank's child, such as multiprocessing's resource tracker, inherits its environment.
                is_rank = number is not None and "trainstone" in process.cmdline()
                found.append((process, int(number) if number is not None and is_rank else None))
        except (OSError, psutil.Error):
            continue
    return found


def find_ranks(out: Path) -> dict[int, psutil.Process]:
    return {number: process for process, number in find_launched(out) if number is not None}


def find_step(out: Path) -> int:
    """Return the step of the last checkpoint, or -1."""
    steps = [int(path.stem.removeprefix("step-")) for path in out.glob("*/checkpoints/step-*.safetensors")]
    return max(steps, default=-1)


def wait_for_training(out: Path, step: int = 1) -> None:
    wait_until(lambda: find_step(out) >= step)


def kill_rank(out: Path, number: int) -> None:
    find_ranks(out)[number].send_signal(signal.SIGKILL)


def draw_steps(chance: random.Random, kills: int, steps: int) -> list[int]:
    """Draw steps at which to kill a rank, one in each equal part of the run, but not the last steps."""
    part = (steps - 3 * EVERY) // kills
    return [number * part + chance.randrange(EVERY, part) for number in range(kills)]


def kill_at(out: Path, step: int, chance: random.Random) -> None:
    """Kill one of two ranks around a step, after the run has made progress since the last start; wait for both."""
    wait_for_training(out, max(find_step(out) + 1, step - step % EVERY))
    ranks, rank = find_ranks(out), chance.randrange(2)
    time.sleep(step % EVERY * chance.uniform(0, 0.05))  # about the time of the steps after the checkpoint
    ranks[rank].send_signal(signal.SIGKILL)
    print(f"killed rank {rank} at about step {step}; last checkpoint at step {find_step(out)}")
    _, left = psutil.wait_procs(list(ranks.values()), LIMIT)
    assert not left


RANK_STEPS = {1: 96, 2: 48, 3: 36}
"""Steps of a run by number of ranks: long enough to be killed several times."""


def start(
    nursery: Nursery, ranks: int, *arguments: str, steps: int | None = None, ignore: tuple[int, ...] = ()
) -> list[Child]:
    """Start a run of `steps` steps on `ranks` ranks."""
    # Several gradient buckets, which are regrouped after the first step.
    buckets = {"parallel.bucket_bytes": 20_000}
    epochs = (steps or RANK_STEPS[ranks]) * ranks / 12
    settings = set_arguments(stop__epochs=epochs, checkpoint__every_steps=4, checkpoint__keep=2, **buckets)
    if ignore:
        return [nursery.start("train", "demo-classify", *settings, *arguments, ignore=ignore)]
    return nursery.start_ranks(ranks, "train", "demo-classify", *settings, *arguments)


def wait_for_steps(children: list[Child]) -> None:
    wait_until(lambda: "training ·" in children[0].err.read_text())


def kill_and_resume(
    nursery: Nursery, ranks: int, kills: int, out: Path, chance: random.Random, steps: int | None = None
) -> tuple[TrainedRun, int]:
    """Kill all ranks at random times and resume, `kills` times; then finish. Return the run and the number of kills."""
    children = start(nursery, ranks, "--out", str(out), steps=steps)
    killed = 0
    for _ in range(kills):
        wait_for_steps(children)
        wait_until(
            lambda: any(out.glob("*/checkpoints/step-*.safetensors"))
        )  # otherwise it would start from the beginning
        time.sleep(chance.uniform(0, 0.2))
        for child in children:
            child.send(signal.SIGKILL)
        codes = {child.wait().code for child in children}
        assert codes <= {-signal.SIGKILL, 0}
        if codes == {0}:  # the run was already finished
            return read_trained_run(find_run(out), ranks), killed
        killed += 1
        run = find_run(out)
        assert read_result(run).status in ("killed", "target_missed")
        children = nursery.start_ranks(ranks, "train", "--resume", str(run))
    assert {child.wait().code for child in children} == {0}
    return read_trained_run(find_run(out), ranks), killed
