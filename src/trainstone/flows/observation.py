"""What is recorded while the measured part of a run goes on: steps, telemetry, memory, pressure on the machine."""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainstone.engine.distributed.collectives import barrier, gather
from trainstone.engine.fit import Fitted
from trainstone.files import sync_path
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.noise import Pressure, read_pressure
from trainstone.measure.devices import choose_reader, peak_bytes, reset_peaks
from trainstone.measure.peaks import Peaks, measure_peaks
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Reader, Telemetry
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder


@dataclass
class Observation:
    """What was seen beside the steps. Complete when the `with` of observe() has ended."""

    clock_start: float
    """When the clock of step and telemetry files began."""
    telemetry_file: Path
    reader: Reader
    pressure: tuple[Pressure, Pressure]
    """On the machine, before and after."""
    peak_bytes: tuple[int | None, int] = (None, 0)
    """Highest use of the device's memory, and of the host's."""
    peaks: Peaks | None = None
    """Measured beside it; None: there was no time to."""
    interrupted: str | None = None
    """The signal that ended it."""


def open_recorder(life: Lifecycle, fitted: Fitted, first_step: int = 0, *, decay_loss: bool = False) -> StepRecorder:
    """Open this rank's step file; of a resumed run, after its steps so far."""
    path = life.run.path / f"steps-rank{life.rank.number:04d}.csv"
    split_phases = fitted.config.engine.split_phases
    return StepRecorder(path, split_phases=split_phases, decay_loss=decay_loss, first_step=first_step)


@contextmanager
def observe(
    life: Lifecycle, fitted: Fitted, current_step: Callable[[], int], clock_start: float | None = None
) -> Iterator[Observation]:
    """Sample the device, the memory and the machine while the body runs. All ranks begin together."""
    # Processes of this run: on rank 0 those of all ranks on this host, elsewhere this one.
    here = {"host": os.uname().nodename, "pid": os.getpid()}
    own = {one["pid"] for one in gather(life.world, here) or [here] if one["host"] == here["host"]}
    if "TORCHELASTIC_RUN_ID" in os.environ:
        own.add(os.getppid())  # torchrun looks after them
    reset_peaks(fitted.device)
    barrier(life.world)  # so that the clocks of all ranks' files begin together
    start = time.perf_counter() if clock_start is None else clock_start
    before = read_pressure(pids=own)
    # Ranks that share a CPU have a file each, and so have those that call their own device the first.
    same_name = fitted.device.type == "cpu" or fitted.device.index == 0
    suffix = f"-rank{life.rank.number:04d}" if same_name and life.rank.number else ""
    with Telemetry(
        life.run.path,
        device_label=str(fitted.device).replace(":", "") + suffix,
        reader=choose_reader(fitted.device),
        current_step=current_step,
        interval_seconds=fitted.config.measure.telemetry_seconds,
        started=start,
    ) as telemetry:
        observed = Observation(start, telemetry.path, telemetry.reader, (before, before))
        yield observed
    observed.pressure = before, read_pressure(pids=own)
    observed.peak_bytes = peak_bytes(fitted.device)


def measure_device(life: Lifecycle, fitted: Fitted, before: Peaks | None = None) -> Generator[Progress, None, Peaks]:
    """Measure what this rank's device can do at most, while all ranks do; of two measurements the better counts."""
    yield Progress(f"measuring this device's peak{' again' if before else ''}")
    barrier(life.world)
    peaks = measure_peaks(fitted.device, fitted.config.train.precision)
    return before.best_of(peaks) if before else peaks


def sync_steps(run: RunFolder, recorder: StepRecorder) -> None:
    """Let rank 0 read this rank's steps from its host."""
    if run.result.world.nodes > 1:
        sync_path(recorder.path)
