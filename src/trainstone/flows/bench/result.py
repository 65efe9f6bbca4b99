"""What is recorded while the measured part of a run goes on (steps, telemetry, memory, pressure on the machine), and
what is concluded from it: throughput, utilisation, noise, findings, verdict."""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainstone.data.loader import Loader
from trainstone.engine.distributed.collectives import World, barrier, gather
from trainstone.engine.fit import Fitted
from trainstone.files import sync_path
from trainstone.flows.bench.input_baselines import Alone, judge_feeding
from trainstone.flows.lifecycle import Lifecycle
from trainstone.machine.allocator import describe_allocator
from trainstone.machine.cpus import available_cores
from trainstone.machine.launch_protocol import name_host
from trainstone.machine.noise import Noise, Pressure, grade_noise, read_pressure
from trainstone.measure.devices import choose_reader, name_device, peak_bytes, reset_peaks
from trainstone.measure.flops import roofline_seconds
from trainstone.measure.peaks import Peaks, measure_peaks
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Reader, Telemetry
from trainstone.results import findings as checks
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema import run as schema
from trainstone.results.step_summary import StepSummary, find_limit, summarise_steps
from trainstone.results.telemetry import HINDRANCES, read_samples, summarise
from trainstone.results.training import scale_throughput
from trainstone.results.verdicts import write_verdict
from trainstone.workloads.registry import WORKLOADS

DEVICE_WORDS = {"cpu": "CPU", "cuda": "GPU"}


@dataclass
class Observed:
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
) -> Iterator[Observed]:
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
        observed = Observed(start, telemetry.path, telemetry.reader, (before, before))
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


def conclude(
    life: Lifecycle,
    fitted: Fitted,
    recorder: StepRecorder,
    seen: Observed,
    *,
    loader: Loader | None = None,
    alone: Alone | None = None,
    left_out: range = range(0),
    communication: schema.Communication | None = None,
    title: str = "",
) -> None:
    """Turn records into the final result and write it. All ranks must come here: each describes its device.

    `loader`: where batches were real, with what was measured of it alone. `left_out`: steps that were profiled, so
    recorded and not counted. `title`: how its sentence calls what was run, if not usual.
    """
    run, ranks = life.run, life.rank.world
    if not len(recorder):
        stopped = finding("interrupted", "stopped before the first step ended")
        run.update(status="interrupted", findings=[*fitted.findings, stopped])
        return
    summary, telemetry = summarise_own(fitted, recorder, seen, left_out)
    devices = gather_devices(life.world, describe_device(fitted, seen.reader, telemetry, summary))
    status: schema.Status = "interrupted" if seen.interrupted else "ok"
    if not devices:
        run.update(status=status)
        return
    fed = judge_feeding(fitted.config, loader, alone, summary) if loader and alone else None
    faults = np.delete(recorder.page_faults(), left_out)[summary.window]
    speed = describe_speed(fitted, summary, telemetry, seen, devices, fed, faults)
    unfed = []
    if run.result.kind == "bench" and ranks > 1 and loader:
        told = f"with {ranks} ranks real images are not compared with synthetic ones, and the loader is not timed alone"
        hint = "start `trainstone bench --data DIR` on one rank: it measures all three speeds"
        unfed = [*tell_skipped(loader), finding("not-measured", told, hint=hint)]
    findings = [
        *fitted.findings,
        *checks.check_throughput(speed["throughput"], summary.step_seconds),
        *speed.pop("findings"),
        *unfed,
        *tell_interruption(seen.interrupted, len(recorder)),
    ]
    run.update(
        **speed,
        status=status,
        phases=summary.phases.model_copy(update={"program_seconds": life.seconds}),
        communication=communication,
        loader=fed,
        devices=devices,
        findings=findings,
        verdict=tell_verdict(fitted, summary, speed["utilisation"], speed["noise"], fed, title=title, ranks=ranks),
    )


def describe_speed(
    fitted: Fitted,
    summary: StepSummary,
    telemetry: dict[str, Any],
    seen: Observed,
    devices: list[schema.Device],
    fed: schema.Loader | None = None,
    page_faults: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """What a result says of the steps of rank 0 and the devices of all ranks, and the findings about it."""
    engine = fitted.config.engine
    shares = telemetry["throttle_percent"] if telemetry["throttled"] else {}
    hindered = {name: share for name, share in shares.items() if name in HINDRANCES}
    throttled = ", ".join(f"{name} in {share:.0f} % of the samples" for name, share in hindered.items())
    throughput = scale_throughput(summary.throughput, len(devices))
    utilisation = judge_utilisation(fitted, summary, seen.peaks, telemetry, throttled, fed) if seen.peaks else None
    noise = grade_noise(
        *seen.pressure,
        step_variation_percent=summary.variation_percent,
        drifting=summary.drifting,
        throttled=bool(throttled),
    )
    memory = describe_memory(seen, page_faults)
    cores, unsupported = available_cores().threads, seen.reader.unsupported
    return {
        "throughput": throughput,
        "step_seconds": summary.step_seconds,
        "utilisation": utilisation,
        "memory": memory,
        "energy": sum_energy(devices, throughput.images_per_second),
        "noise": noise,
        "findings": [
            *checks.check_limits(utilisation or schema.Utilisation(), None if fed else summary.data_share, throttled),
            *(checks.check_feeding(fed, summary.data_share) if fed else ()),
            *checks.check_machine(noise, memory, keep_memory=engine.keep_memory, threads=engine.threads, cores=cores),
            *([finding("not-measured", f"telemetry: {'; '.join(unsupported)}")] if unsupported else ()),
        ],
    }


def summarise_own(
    fitted: Fitted, recorder: StepRecorder, seen: Observed, left_out: range = range(0)
) -> tuple[StepSummary, dict[str, Any]]:
    """Sum up this rank's steps that count, and its telemetry while they ran."""
    columns = {name: np.delete(column, left_out) for name, column in recorder.columns().items()}
    summary = summarise_steps(columns, compiled=fitted.config.engine.compile)
    starts, seconds = columns["start_seconds"][summary.window], columns["step_seconds"]
    window = float(starts[0]), float(starts[-1] + seconds[-1])
    return summary, summarise(read_samples(seen.telemetry_file), *window, meter=seen.reader.meter)


def describe_memory(seen: Observed, page_faults: NDArray[np.float64] | None = None) -> schema.Memory:
    return schema.Memory(
        peak_device_bytes=seen.peak_bytes[0],
        peak_host_bytes=seen.peak_bytes[1],
        allocator=describe_allocator(),
        page_faults_per_step=None if page_faults is None else float(page_faults.mean()),
    )


def gather_devices(world: World, own: schema.Device) -> list[schema.Device]:
    """Return the devices of all ranks on rank 0; none on others."""
    devices = gather(world, {**own.model_dump(mode="json"), "rank": world.rank.number})
    return [schema.Device.model_validate(one) for one in devices or ()]


def tell_verdict(
    fitted: Fitted,
    summary: StepSummary,
    utilisation: schema.Utilisation | None,
    noise: Noise,
    fed: schema.Loader | None = None,
    *,
    title: str = "",
    ranks: int = 1,
) -> str:
    """The sentence of a run of this configuration; `summary` is that of the first rank."""
    return write_verdict(
        title or WORKLOADS[fitted.config.workload].title(fitted.config),
        scale_throughput(summary.throughput, ranks),
        utilisation,
        noise,
        device_kind=DEVICE_WORDS.get(fitted.device.type, "device"),
        precision=fitted.config.train.precision,
        feeding=checks.tell_feeding(fed, summary.data_share) if fed else "",
        ranks=ranks,
    )


def judge_utilisation(
    fitted: Fitted,
    summary: StepSummary,
    peaks: Peaks,
    telemetry: dict[str, Any],
    throttled: str,
    fed: schema.Loader | None = None,
) -> schema.Utilisation:
    """Speed against the measured peaks, and what limits it."""
    work = fitted.work
    compute_seconds, memory_seconds = roofline_seconds(work.ops, peaks.flops, peaks.bytes_per_second)
    batch = fitted.config.train.batch_size
    utilisation = schema.Utilisation(
        mfu=summary.throughput.images_per_second * work.flops / batch / peaks.flops,
        flops_per_image=work.flops // batch,
        bytes_per_image=work.bytes_moved // batch,
        peak_flops=peaks.flops,
        peak_source=peaks.flops_source,
        peak_bytes_per_second=peaks.bytes_per_second,
        roofline_compute_seconds=compute_seconds,
        roofline_memory_seconds=memory_seconds,
    )
    busy = telemetry["util_percent"] if fitted.device.type == "cuda" else None
    data_bound = fed.data_bound if fed else summary.data_share > checks.DATA_BOUND_SHARE
    limit = find_limit(utilisation, data_bound=data_bound, busy_percent=busy, throttled=throttled)
    return utilisation.model_copy(update={"limit": limit})


def sum_energy(devices: list[schema.Device], images_per_second: float) -> schema.Energy | None:
    """Energy an image of all devices; absent where one has no counter, or shares it with another rank."""
    meters = {(device.host, device.label) for device in devices}
    known = [device.telemetry.get("average_watts") for device in devices]
    if len(meters) < len(devices) or None in known:
        return None
    watts, meter = sum(known), devices[0].telemetry["meter"]
    return schema.Energy(joules_per_image=watts / images_per_second, average_watts=watts, meter=meter)


def describe_device(
    fitted: Fitted, reader: Reader, telemetry: dict[str, Any], summary: StepSummary | None = None
) -> schema.Device:
    return schema.Device(
        host=name_host(),
        name=name_device(fitted.device),
        label=str(fitted.device),
        telemetry={name: value for name, value in telemetry.items() if value is not None},
        unsupported=reader.unsupported,
        images_per_second=summary.throughput.images_per_second if summary else None,
        step_seconds_median=summary.step_seconds.median if summary else None,
        data_wait_seconds=summary.phases.data_wait_seconds if summary else None,
    )


def tell_skipped(loader: Loader | None) -> list[schema.Finding]:
    if loader is None or not loader.skipped:
        return []
    told = f"damaged images skipped since the last start: {len(loader.bad_pictures)}, {loader.skipped} times in all"
    return [finding("pictures-skipped", f"{told}; log.txt names them")]


def tell_interruption(signal_name: str | None, num_steps: int) -> list[schema.Finding]:
    return [finding("interrupted", f"stopped by {signal_name} after {num_steps} steps")] if signal_name else []
