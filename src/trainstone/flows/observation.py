"""Record steps, telemetry, memory use and other load on the machine during the measured part of a run."""

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

PEAK_SECONDS, PEAK_SHARE = 1.5, 0.03
"""Time of a peak measurement: at most so many seconds, and this share of the time budget."""


@dataclass
class Observation:
    """Measurements taken beside the steps; complete after the `with observe()` block."""

    clock_start: float
    """Start of the clock of step and telemetry files."""
    telemetry_file: Path
    reader: Reader
    pressure: tuple[Pressure, Pressure]
    """Load counters of the machine before and after."""
    peak_bytes: tuple[int | None, int] = (None, 0)
    """Peak memory use of the device and of the host."""
    peaks: Peaks | None = None
    """Measured peak speed of the device; None: not measured."""
    interrupted: str | None = None
    """The signal that stopped the run."""


def open_recorder(life: Lifecycle, fitted: Fitted, first_step: int = 0, *, decay_loss: bool = False) -> StepRecorder:
    """Open this rank's step file; a resumed run appends to it."""
    path = life.run.path / f"steps-rank{life.rank.number:04d}.csv"
    split_phases = fitted.config.engine.split_phases
    return StepRecorder(path, split_phases=split_phases, decay_loss=decay_loss, first_step=first_step)


@contextmanager
def observe(
    life: Lifecycle, fitted: Fitted, current_step: Callable[[], int], clock_start: float | None = None
) -> Iterator[Observation]:
    """Sample device, memory and machine while the `with` body runs. All ranks must call this."""
    # Processes of this run: on rank 0 those of all ranks on this host, on other ranks their own.
    here = {"host": os.uname().nodename, "pid": os.getpid()}
    own = {one["pid"] for one in gather(life.world, here) or [here] if one["host"] == here["host"]}
    if "TORCHELASTIC_RUN_ID" in os.environ:
        own.add(os.getppid())  # torchrun's agent
    reset_peaks(fitted.device)
    barrier(life.world)  # the clocks of all ranks' files start together
    start = time.perf_counter() if clock_start is None else clock_start
    before = read_pressure(pids=own)
    # Add the rank to the file name where device names repeat: CPU ranks, and ranks that see only cuda:0.
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
    """Measure the peak speed of this rank's device, on all ranks at once; of two measurements the better counts."""
    yield Progress(f"measuring this device's peak{' again' if before else ''}")
    barrier(life.world)
    seconds = min(PEAK_SECONDS, PEAK_SHARE * fitted.config.measure.seconds)
    peaks = measure_peaks(fitted.device, fitted.config.train.precision, seconds)
    return before.best_of(peaks) if before else peaks


def sync_steps(run: RunFolder, recorder: StepRecorder) -> None:
    """Sync this rank's step file to disk, so that rank 0 can read it from another host."""
    if run.result.world.nodes > 1:
        sync_path(recorder.path)
