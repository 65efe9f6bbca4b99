"""Result fields that bench, train and compare share, from recorded steps and telemetry: speed, limits, devices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainstone.data.loader import Loader
from trainstone.engine.distributed.collectives import World, gather
from trainstone.engine.fit import Fitted
from trainstone.flows.observation import Observation
from trainstone.machine.allocator import describe_allocator
from trainstone.machine.cpus import available_cores
from trainstone.machine.launch_protocol import get_host_name
from trainstone.machine.noise import Noise, grade_noise
from trainstone.measure.devices import name_device
from trainstone.measure.flops import roofline_seconds
from trainstone.measure.peaks import Peaks
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Reader
from trainstone.results import findings as checks
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema
from trainstone.results.step_summary import StepSummary, find_limit, summarise_steps
from trainstone.results.telemetry import THROTTLE_REASONS, read_samples, summarise
from trainstone.results.training import scale_throughput
from trainstone.results.verdicts import format_verdict
from trainstone.workloads.registry import WORKLOADS

DEVICE_WORDS = {"cpu": "CPU", "cuda": "GPU"}


def summarise_speed(
    fitted: Fitted,
    summary: StepSummary,
    telemetry: dict[str, Any],
    observation: Observation,
    devices: list[schema.Device],
    loader_result: schema.LoaderResult | None = None,
    page_faults: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Return the result fields about speed, from the steps of rank 0 and the devices of all ranks, with findings."""
    engine = fitted.config.engine
    shares = telemetry["throttle_percent"] if telemetry["throttled"] else {}
    hindered = {name: share for name, share in shares.items() if name in THROTTLE_REASONS}
    throttled = ", ".join(f"{name} in {share:.0f} % of the samples" for name, share in hindered.items())
    throughput = scale_throughput(summary.throughput, len(devices))
    utilisation = (
        assess_utilisation(fitted, summary, observation.peaks, telemetry, throttled, loader_result)
        if observation.peaks
        else None
    )
    noise = grade_noise(
        *observation.pressure,
        step_variation_percent=summary.variation_percent,
        drifting=summary.drifting,
        throttled=bool(throttled),
    )
    memory = build_memory(observation, page_faults)
    cores, unsupported = available_cores().threads, observation.reader.unsupported
    return {
        "throughput": throughput,
        "step_seconds": summary.step_seconds,
        "utilisation": utilisation,
        "memory": memory,
        "energy": sum_energy(devices, throughput.images_per_second),
        "noise": noise,
        "findings": [
            *checks.check_limits(
                utilisation or schema.Utilisation(), None if loader_result else summary.data_share, throttled
            ),
            *(checks.check_loader(loader_result, summary.data_share) if loader_result else ()),
            *checks.check_machine(noise, memory, keep_memory=engine.keep_memory, threads=engine.threads, cores=cores),
            *([finding("not-measured", f"telemetry: {'; '.join(unsupported)}")] if unsupported else ()),
        ],
    }


def summarise_rank(
    fitted: Fitted, recorder: StepRecorder, observation: Observation, excluded_steps: range = range(0)
) -> tuple[StepSummary, dict[str, Any]]:
    """Summarise this rank's steps without `excluded_steps`, and its telemetry while they ran."""
    columns = {name: np.delete(column, excluded_steps) for name, column in recorder.columns().items()}
    summary = summarise_steps(columns, compiled=fitted.config.engine.compile)
    starts, seconds = columns["start_seconds"][summary.window], columns["step_seconds"]
    window = float(starts[0]), float(starts[-1] + seconds[-1])
    return summary, summarise(read_samples(observation.telemetry_file), *window, meter=observation.reader.meter)


def build_memory(observation: Observation, page_faults: NDArray[np.float64] | None = None) -> schema.Memory:
    return schema.Memory(
        peak_device_bytes=observation.peak_bytes[0],
        peak_host_bytes=observation.peak_bytes[1],
        allocator=describe_allocator(),
        page_faults_per_step=None if page_faults is None else float(page_faults.mean()),
    )


def gather_devices(world: World, own: schema.Device) -> list[schema.Device]:
    """Return the devices of all ranks on rank 0; an empty list on other ranks."""
    devices = gather(world, {**own.model_dump(mode="json"), "rank": world.rank.number})
    return [schema.Device.model_validate(one) for one in devices or ()]


def write_speed_verdict(
    fitted: Fitted,
    summary: StepSummary,
    utilisation: schema.Utilisation | None,
    noise: Noise,
    loader_result: schema.LoaderResult | None = None,
    *,
    title: str = "",
    ranks: int = 1,
) -> str:
    """Return the one-sentence verdict of a run; `summary` is that of rank 0."""
    return format_verdict(
        title or WORKLOADS[fitted.config.workload].title(fitted.config),
        scale_throughput(summary.throughput, ranks),
        utilisation,
        noise,
        peak=f"{DEVICE_WORDS.get(fitted.device.type, 'device')}'s measured {fitted.config.train.precision} peak",
        loader=checks.describe_data_bound(loader_result, summary.data_share) if loader_result else "",
        ranks=ranks,
    )


def assess_utilisation(
    fitted: Fitted,
    summary: StepSummary,
    peaks: Peaks,
    telemetry: dict[str, Any],
    throttled: str,
    loader_result: schema.LoaderResult | None = None,
) -> schema.Utilisation:
    """Compare the speed with the measured peaks and find what limits it."""
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
    data_bound = loader_result.data_bound if loader_result else summary.data_share > checks.DATA_BOUND_SHARE
    limit = find_limit(utilisation, data_bound=data_bound, busy_percent=busy, throttled=throttled)
    return utilisation.model_copy(update={"limit": limit})


def sum_energy(devices: list[schema.Device], images_per_second: float) -> schema.Energy | None:
    """Return the energy per image over all devices; None if one has no counter or shares it with another rank."""
    # Slurm may show each rank one GPU only, as cuda:0.
    meters = {(device.host, device.uuid or device.label) for device in devices}
    known = [device.telemetry.get("average_watts") for device in devices]
    if len(meters) < len(devices) or None in known:
        return None
    watts, meter = sum(known), devices[0].telemetry["meter"]
    return schema.Energy(joules_per_image=watts / images_per_second, average_watts=watts, meter=meter)


def build_device(
    fitted: Fitted, reader: Reader, telemetry: dict[str, Any], summary: StepSummary | None = None
) -> schema.Device:
    return schema.Device(
        host=get_host_name(),
        name=name_device(fitted.device),
        label=str(fitted.device),
        uuid=reader.uuid,
        telemetry={name: value for name, value in telemetry.items() if value is not None},
        unsupported=reader.unsupported,
        images_per_second=summary.throughput.images_per_second if summary else None,
        step_seconds_median=summary.step_seconds.median if summary else None,
        data_wait_seconds=summary.phases.data_wait_seconds if summary else None,
    )


def check_skipped(loader: Loader | None) -> list[schema.Finding]:
    if loader is None or not loader.skipped:
        return []
    message = f"damaged images skipped since the last start: {len(loader.bad_images)}, {loader.skipped} times in all"
    return [finding("images-skipped", f"{message}; log.txt names them")]
