"""Test in a child process which precisions a device can execute, and how fast they are.

CPU flags are not reliable: a virtual machine may report AMX and crash with an illegal instruction, and emulated bf16 is
13 times slower than fp32. A crash ends only the child process. By hand:

    python -m trainstone.engine.precision_trial cpu fp32,bf16 2
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trainstone.machine.cpus import restore_affinity

TRIAL_TIMEOUT_SECONDS = 120.0
MIN_REPEATS = 4
MAX_SECONDS_A_PRECISION = 1.0
# Use fp32 unless another precision is clearly faster, and prefer bf16 to an equal fp16 (bf16 needs no loss scale):
# if noise decided, two runs on one machine could differ.
MIN_GAIN = 1.15


@dataclass(frozen=True)
class Trial:
    """Best time of the trial block at one precision, or why it failed."""

    precision: str
    seconds: float | None
    failure: str | None = None


def try_precisions(device: str, precisions: Sequence[str], threads: int) -> list[Trial]:
    """Run the trial block at each precision in child processes; a crash loses only the precision that caused it."""
    trials: list[Trial] = []
    while remaining := precisions[len(trials) :]:
        command = [
            sys.executable,
            "-P",
            "-m",
            "trainstone.engine.precision_trial",
            device,
            ",".join(remaining),
            str(threads),
        ]
        try:
            # A new session: a Ctrl-C must not reach the child and look like a precision that crashed.
            child = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                timeout=TRIAL_TIMEOUT_SECONDS,
                start_new_session=True,
            )
            output, code, errors = child.stdout, child.returncode, child.stderr
        except subprocess.TimeoutExpired as err:
            output = err.stdout.decode() if isinstance(err.stdout, bytes) else err.stdout or ""
            code, errors = None, f"no answer within {TRIAL_TIMEOUT_SECONDS:.0f} s"
        done = [Trial(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
        trials += done
        if len(done) < len(remaining):
            failure = (errors.strip().splitlines() or ["failed without a message"])[-1]
            if code is not None and code < 0:
                failure = f"crashed: {signal.strsignal(-code)}"
            trials.append(Trial(remaining[len(done)], None, failure))
    return trials


def choose_fastest(trials: Sequence[Trial]) -> str:
    """Return the precision to use: the fastest if it is clearly faster than fp32; the first of equals."""
    works = {trial.precision: trial.seconds for trial in trials if trial.seconds is not None}
    choice = "fp32"
    for precision, seconds in works.items():
        margin = MIN_GAIN if choice == "fp32" else 1.05
        if seconds * margin < works.get(choice, float("inf")):
            choice = precision
    return choice


def _time_block(device_name: str, precision: str) -> float:
    """Time forward and backward of a small convolutional block with a linear layer: the kernels that ResNet uses."""
    import torch
    from torch import nn

    from trainstone.measure.devices import autocast, switch_tf32, synchronize

    device = torch.device(device_name)
    width, size, batch = (64, 28, 2) if device.type == "cpu" else (256, 56, 64)
    torch.manual_seed(0)
    switch_tf32(precision)
    block = nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 1000),
    ).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, width, size, size, device=device).to(memory_format=torch.channels_last)
    best, begin = float("inf"), time.perf_counter()
    repeats = 0
    while repeats < MIN_REPEATS or (repeats < 30 and time.perf_counter() - begin < MAX_SECONDS_A_PRECISION):
        started = time.perf_counter()
        with autocast(device, precision):
            loss = block(images).float().sum()
        loss.backward()
        synchronize(device)
        best = min(best, time.perf_counter() - started)
        repeats += 1
    return best


if __name__ == "__main__":
    restore_affinity()  # OpenMP may have bound the parent process, and so this one, to one core
    import torch

    torch.set_num_threads(int(sys.argv[3]))
    for precision in sys.argv[2].split(","):
        try:
            trial = Trial(precision, _time_block(sys.argv[1], precision))
        except RuntimeError as err:
            trial = Trial(precision, None, str(err).splitlines()[0])
        sys.stdout.write(json.dumps(asdict(trial)) + "\n")
        sys.stdout.flush()
