"""A training run on several ranks that is killed and resumed, again and again; what it must end with is the test's."""

import random
import signal
import time
from pathlib import Path

from command import find_run
from nursery import Child, Nursery, wait_until
from small_training import Learned, read_learned, set_arguments
from trainstone.results.store import read_result

STEPS = {1: 96, 2: 48, 3: 36}
"""Of a run, by ranks: long enough to be met under way, several times where it is one rank."""


def start(
    nursery: Nursery, ranks: int, *arguments: str, steps: int | None = None, ignore: tuple[int, ...] = ()
) -> list[Child]:
    """Start a run of so many steps with batch norm and an average of the weights, on however many ranks."""
    # Several parcels of gradients, which are regrouped after the first step.
    parcels = {"parallel.bucket_bytes": 20_000}
    epochs = (steps or STEPS[ranks]) * ranks / 12
    settings = set_arguments(stop__epochs=epochs, checkpoint__every_steps=4, checkpoint__keep=2, **parcels)
    if ignore:
        return [nursery.start("train", "demo-classify", *settings, *arguments, ignore=ignore)]
    return nursery.start_ranks(ranks, "train", "demo-classify", *settings, *arguments)


def wait_for_steps(children: list[Child]) -> None:
    wait_until(lambda: "training ·" in children[0].err.read_text())


def kill_and_resume(
    nursery: Nursery, ranks: int, kills: int, out: Path, chance: random.Random, steps: int | None = None
) -> tuple[Learned, int]:
    """Kill all ranks somewhere, resume, kill again ...; let the last start end. Returns how many kills there were."""
    children = start(nursery, ranks, "--out", str(out), steps=steps)
    killed = 0
    for _ in range(kills):
        wait_for_steps(children)
        wait_until(lambda: any(out.glob("*/checkpoints/step-*.safetensors")))  # or it would only begin anew
        time.sleep(chance.uniform(0, 0.2))
        for child in children:
            child.send(signal.SIGKILL)
        codes = {child.wait().code for child in children}
        assert codes <= {-signal.SIGKILL, 0}
        if codes == {0}:  # a quick machine had come to the end
            return read_learned(find_run(out), ranks), killed
        killed += 1
        run = find_run(out)
        assert read_result(run).status in ("killed", "target_missed")
        children = nursery.start_ranks(ranks, "train", "--resume", str(run))
    assert {child.wait().code for child in children} == {0}
    return read_learned(find_run(out), ranks), killed
