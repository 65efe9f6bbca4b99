"""Which precisions does this device really execute, and how fast? A trial in a child process.

CPU flags lie: a virtual machine may show AMX and die of an illegal instruction in it, and bf16 runs 13 times slower
than fp32 where it is emulated. A child can die without harm. By hand:

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
# fp32 stays unless something is clearly faster, and bf16 is preferred to an equal fp16 (it needs no loss scale):
# a choice that hangs on noise would make two runs on one machine unlike.
MIN_GAIN = 1.15


@dataclass(frozen=True)
class Trial:
    """Best seconds of the trial block at one precision, or why there are none."""

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
            # A session of its own: a Ctrl-C is for us, and must not look like a precision that crashed.
            how = {"capture_output": True, "text": True, "timeout": TRIAL_TIMEOUT_SECONDS, "start_new_session": True}
            child = subprocess.run(command, check=False, **how)
            output, code, errors = child.stdout, child.returncode, child.stderr
        except subprocess.TimeoutExpired as err:
            output = err.stdout.decode() if isinstance(err.stdout, bytes) else err.stdout or ""
            code, errors = None, f"no answer within {TRIAL_TIMEOUT_SECONDS:.0f} s"
        done = [Trial(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
        trials += done
        if len(done) < len(remaining):
            failure = (errors.strip().splitlines() or ["failed without a word"])[-1]
            if code is not None and code < 0:
                failure = f"crashed: {signal.strsignal(-code)}"
            trials.append(Trial(remaining[len(done)], None, failure))
    return trials


def fastest(trials: Sequence[Trial]) -> str:
    """Return the precision to take: the fastest, if it beats fp32 clearly; of equals the first named."""
    works = {trial.precision: trial.seconds for trial in trials if trial.seconds is not None}
    choice = "fp32"
    for precision, seconds in works.items():
        margin = MIN_GAIN if choice == "fp32" else 1.05
        if seconds * margin < works.get(choice, float("inf")):
            choice = precision
    return choice


def _time_block(device_name: str, precision: str) -> float:
    """Forward and backward of a small residual block with a linear layer: the kernels ResNet uses."""
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
    restore_affinity()  # OpenMP may have bound our parent, and so us, to one core
    import torch

    torch.set_num_threads(int(sys.argv[3]))
    for precision in sys.argv[2].split(","):
        try:
            trial = Trial(precision, _time_block(sys.argv[1], precision))
        except RuntimeError as err:
            trial = Trial(precision, None, str(err).splitlines()[0])
        sys.stdout.write(json.dumps(asdict(trial)) + "\n")
        sys.stdout.flush()
