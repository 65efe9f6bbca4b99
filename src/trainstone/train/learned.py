"""Judges a training run and writes its final result: the last phase of train/to_target.py."""

import os

from trainstone.machine.allocator import describe_allocator
from trainstone.machine.health import grade_noise
from trainstone.measure.recorder import StepRecorder
from trainstone.results import schema
from trainstone.results.checks import check_limits, check_throughput, finding
from trainstone.results.learning import write_learning_verdict
from trainstone.results.samples import read_samples, summarise
from trainstone.results.store import RunFolder
from trainstone.results.summary import StepSummary, summarise_steps
from trainstone.train.conclude import (
    Observed,
    check_setting,
    describe_device,
    judge_energy,
    judge_utilisation,
    tell_throttling,
    tell_unmeasured,
)
from trainstone.train.course import Course
from trainstone.train.distributed import World, gather
from trainstone.train.fit import Fitted
from trainstone.units import format_count
from trainstone.workloads.registry import WORKLOADS


def conclude_training(
    run: RunFolder, fitted: Fitted, world: World, recorder: StepRecorder, course: Course, seen: Observed
) -> None:
    """Turn steps and evaluations into the final result; every rank describes its device, the first writes."""
    status, quality = judge_status(course, fitted.config.eval.target), course.quality(fitted.config.eval)
    phases = course.phases().model_copy(update={"program_seconds": seen.program_seconds})
    title = WORKLOADS[fitted.config.workload].title(fitted.config)
    verdict = write_learning_verdict(quality, status, phases, title, stopped_by=seen.interrupted or "a signal")
    run.update(status=status, quality=quality, phases=phases, verdict=verdict)
    if not len(recorder):  # stopped before its first step
        return
    columns = recorder.columns()
    summary = summarise_steps(columns, compiled=fitted.config.engine.compile)
    starts, seconds = columns["start_seconds"][summary.window], columns["step_seconds"]
    window = float(starts[0]), float(starts[-1] + seconds[-1])
    telemetry = summarise(read_samples(seen.telemetry_file), *window, meter=seen.reader.meter)
    device = describe_device(os.uname().nodename, fitted, summary, telemetry, seen.reader)
    devices = gather(world, {**device.model_dump(mode="json"), "rank": world.rank.number})
    if devices is None:
        return
    throttled = tell_throttling(telemetry)
    utilisation = judge_utilisation(fitted, summary, seen.peaks, telemetry, throttled)
    throughput = scale_throughput(summary, world.rank.world)
    noise = grade_noise(
        *seen.pressure,
        step_variation_percent=summary.variation_percent,
        drifting=summary.drifting,
        throttled=bool(throttled),
    )
    memory = schema.Memory(
        peak_device_bytes=seen.memory[0], peak_host_bytes=seen.memory[1], allocator=describe_allocator()
    )
    run.update(
        throughput=throughput,
        step_seconds=summary.step_seconds,
        utilisation=utilisation,
        memory=memory,
        energy=judge_energy(telemetry, summary.throughput.images_per_second) if world.alone else None,
        noise=noise,
        devices=[schema.Device.model_validate(one) for one in devices],
        findings=[
            *run.result.findings,
            *check_speed(throughput, summary.step_seconds),
            *check_limits(utilisation, summary.data_share, throttled),
            *check_setting(fitted, noise, memory),
            *tell_skipped(seen),
            *tell_unmeasured(seen.reader.unsupported),
            *tell_stop(run, course, seen.interrupted),
        ],
    )


def judge_status(course: Course, target: float | None) -> schema.Status:
    """Say in a word how it ended."""
    if course.reached:
        return "target_reached"
    if course.stopped:
        return "interrupted"
    return "ok" if target is None else "target_missed"


def scale_throughput(summary: StepSummary, ranks: int) -> schema.Throughput:
    """All ranks' images a second: they take every step together."""
    one = summary.throughput
    ci95 = (one.ci95[0] * ranks, one.ci95[1] * ranks) if one.ci95 else None
    return one.model_copy(update={"images_per_second": one.images_per_second * ranks, "ci95": ci95})


def check_speed(throughput: schema.Throughput, steps: schema.StepSeconds) -> list[schema.Finding]:
    """Doubts about the speed: beside the point of a training, which is no measurement of it."""
    hint = "trainstone bench RUN/config.toml measures the speed by itself"
    doubts = check_throughput(throughput, steps)
    return [doubt.model_copy(update={"severity": "info", "hint": hint}) for doubt in doubts]


def tell_skipped(seen: Observed) -> list[schema.Finding]:
    """A finding where damaged pictures were left out."""
    if seen.loader is None or not seen.loader.skipped:
        return []
    pictures = format_count(len(seen.loader.bad_pictures), "damaged picture")
    times = format_count(seen.loader.skipped, "time")
    return [
        finding("pictures-skipped", f"{pictures} left out, {times} in all, since the last start; log.txt names them")
    ]


def tell_stop(run: RunFolder, course: Course, signal_name: str | None) -> list[schema.Finding]:
    """A finding where somebody stopped the run."""
    if not course.stopped:
        return []
    hint = f"go on with: trainstone train --resume {run.path}"
    return [finding("interrupted", f"stopped by {signal_name} after {course.done:,} steps", hint=hint)]
