"""Judges a training run and writes its final result: the last phase of train/to_target.py."""

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from trainstone.machine.launched import name_host
from trainstone.measure.devices import name_device
from trainstone.results import schema
from trainstone.results.checks import check_limits, finding
from trainstone.results.learning import check_speed, scale_throughput, write_learning_verdict
from trainstone.results.samples import Sample, read_samples, summarise
from trainstone.results.store import RunFolder
from trainstone.results.summary import StepSummary, summarise_steps
from trainstone.train.conclude import (
    assess_noise,
    check_setting,
    describe_device,
    describe_memory,
    judge_utilisation,
    sum_energy,
    tell_skipped,
    tell_throttling,
    tell_unmeasured,
)
from trainstone.train.course import Course
from trainstone.train.distributed import World, gather
from trainstone.train.evaluation import tell_left_out
from trainstone.train.fit import Fitted
from trainstone.train.observation import Observed
from trainstone.train.setting import Setting
from trainstone.workloads.registry import WORKLOADS

ENERGY = ("joules", "energy_seconds", "average_watts", "meter")


def write_end(setting: Setting, course: Course, signal_name: str | None, program_seconds: float) -> None:
    """Write how it ended, before anything else is judged: whoever is killed now has come to the end all the same."""
    config, run = setting.config, setting.run
    run.begin()
    validation = setting.validation
    status, quality = judge_status(course, config.eval.target), course.quality(config.eval, ended=validation is None)
    # The clock of a run that reached its target stopped with that evaluation: what came after it is not counted.
    phases = run.result.phases if course.reached and run.result.phases else course.phases()
    phases = phases.model_copy(update={"program_seconds": program_seconds})
    title = WORKLOADS[config.workload].title(config)
    verdict = write_learning_verdict(
        quality, status, phases, title, stopped_by=signal_name or "a signal", run=shlex.quote(str(run.path))
    )
    findings = [
        *run.result.findings,
        *tell_skipped(setting.task.loader),
        *(tell_left_out(validation, course.history[-1].images, config) if validation and course.history else ()),
        *tell_stop(run, course, signal_name),
    ]
    run.update(status=status, quality=quality, phases=phases, verdict=verdict, findings=findings)
    for sink in setting.sinks:
        sink.finish(status)


def conclude_training(setting: Setting, fitted: Fitted, course: Course, seen: Observed, program_seconds: float) -> None:
    """Judge the speed as well; every rank describes its device, the first writes."""
    run, world, recorder = setting.run, setting.world, setting.recorder
    device = schema.Device(host=name_host(), name=name_device(fitted.device), label=str(fitted.device))
    summary, telemetry = None, {}
    if len(recorder):  # or stopped before its first step
        columns = recorder.columns()
        summary = summarise_steps(columns, compiled=fitted.config.engine.compile)
        starts, seconds = columns["start_seconds"][summary.window], columns["step_seconds"]
        window = float(starts[0]), float(starts[-1] + seconds[-1])
        telemetry = sum_up(read_samples(seen.telemetry_file), window, seen.reader.meter, course)
        device = describe_device(device.host, fitted, summary, telemetry, seen.reader)
    # A rank may have lost its steps while others have theirs: all must come here.
    devices = gather(world, {**device.model_dump(mode="json"), "rank": world.rank.number})
    if devices is None:
        return
    phases = (run.result.phases or schema.Phases()).model_copy(update={"program_seconds": program_seconds})
    run.update(devices=[schema.Device.model_validate(one) for one in devices], phases=phases)
    if summary is not None:
        write_speed(run, fitted, world, summary, telemetry, seen)


def sum_up(samples: Sequence[Sample], window: tuple[float, float], meter: str | None, course: Course) -> dict[str, Any]:
    """Sum up telemetry; energy is left out where there were several starts: it counted on between them."""
    telemetry = summarise(samples, *window, meter=meter)
    went_back = any(later.time_seconds < one.time_seconds for one, later in itertools.pairwise(samples))
    if course.starts > 1 or went_back:
        telemetry |= dict.fromkeys(ENERGY)
    return telemetry


def write_speed(
    run: RunFolder, fitted: Fitted, world: World, summary: StepSummary, telemetry: dict[str, Any], seen: Observed
) -> None:
    """Write what the steps of the first rank and its device say."""
    throttled = tell_throttling(telemetry)
    utilisation = judge_utilisation(fitted, summary, seen.peaks, telemetry, throttled) if seen.peaks else None
    throughput = scale_throughput(summary.throughput, world.rank.world)
    noise = assess_noise(seen, summary, throttled)
    memory = describe_memory(seen)
    run.update(
        throughput=throughput,
        step_seconds=summary.step_seconds,
        utilisation=utilisation,
        memory=memory,
        energy=sum_energy(run.result.devices, throughput.images_per_second),
        noise=noise,
        findings=[
            *run.result.findings,
            *check_speed(throughput, summary.step_seconds),
            *check_limits(utilisation or schema.Utilisation(), summary.data_share, throttled),
            *check_setting(fitted, noise, memory),
            *tell_unmeasured(seen.reader.unsupported),
        ],
    )


def judge_status(course: Course, target: float | None) -> schema.Status:
    """Say in a word how it ended."""
    if course.reached:
        return "target_reached"
    if course.stopped:
        return "interrupted"
    return "ok" if target is None else "target_missed"


def tell_stop(run: RunFolder, course: Course, signal_name: str | None) -> list[schema.Finding]:
    """A finding where somebody stopped the run."""
    if not course.stopped:
        return []
    hint = f"go on with: trainstone train --resume {shlex.quote(str(run.path))}"
    return [finding("interrupted", f"stopped by {signal_name} after {course.done:,} steps", hint=hint)]
