"""Write the result of a training run: status and quality first, then speed and devices."""

import shlex
from collections.abc import Sequence

from trainstone.engine.fit import Fitted
from trainstone.flows.evaluate.run import describe_skipped
from trainstone.flows.observation import Observation
from trainstone.flows.speed_summary import build_device, check_skipped, gather_devices, summarise_rank, summarise_speed
from trainstone.flows.train.loop import TrainingContext
from trainstone.flows.train.state import TrainingState
from trainstone.machine.signals import OTHER_RANK
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema
from trainstone.results.schema.run import Status
from trainstone.results.telemetry import TelemetrySample, read_samples
from trainstone.results.training import check_speed
from trainstone.results.verdicts import format_training_verdict
from trainstone.workloads.registry import WORKLOADS


def write_outcome(context: TrainingContext, state: TrainingState) -> None:
    """Write status and quality first: they are complete even if the process is killed during what follows."""
    config, run = context.config, context.life.run
    signal_name = context.life.signals.received or OTHER_RANK
    run.commit()
    validation = context.validation
    quality = state.quality(config.eval, ended=validation is None)
    status: Status = "ok" if config.eval.target is None else "target_missed"
    if state.reached:
        status = "target_reached"
    elif state.stopped:
        status = "interrupted"
    # If the target was reached, the phases were written with that evaluation; later time does not count.
    phases = run.result.phases if state.reached and run.result.phases else state.phases()
    phases = phases.model_copy(update={"program_seconds": context.life.seconds})
    title = WORKLOADS[config.workload].title(config)
    verdict = format_training_verdict(
        quality, status, phases, title, stopped_by=signal_name, run=shlex.quote(str(run.path))
    )
    findings = [
        *run.result.findings,
        *check_skipped(context.task.loader),
        *(describe_skipped(validation, state.history[-1].images, config) if validation and state.history else ()),
    ]
    if state.stopped:
        hint = f"resume with: trainstone train --resume {shlex.quote(str(run.path))}"
        findings.append(finding("interrupted", f"stopped by {signal_name} after {state.done:,} steps", hint=hint))
    run.update(status=status, quality=quality, phases=phases, verdict=verdict, findings=findings)
    for sink in context.sinks:
        sink.finish(status)


def write_measurements(
    context: TrainingContext, fitted: Fitted, state: TrainingState, observation: Observation
) -> None:
    run, world, recorder = context.life.run, context.life.world, context.recorder
    summary, telemetry = None, {}
    if len(recorder):  # 0: stopped before the first step
        summary, telemetry = summarise_rank(fitted, recorder, observation)
        if not has_one_clock(state, read_samples(observation.telemetry_file)):
            telemetry |= dict.fromkeys(("joules", "energy_seconds", "average_watts", "meter"))
    # All ranks must call this, even one without steps.
    devices = gather_devices(world, build_device(fitted, observation.reader, telemetry, summary))
    if not devices:
        return
    phases = (run.result.phases or schema.Phases()).model_copy(update={"program_seconds": context.life.seconds})
    run.update(devices=devices, phases=phases)
    if summary is not None:
        speed = summarise_speed(fitted, summary, telemetry, observation, run.result.devices)
        findings = [*check_speed(speed["throughput"], summary.step_seconds), *speed.pop("findings")]
        run.update(**speed, findings=[*run.result.findings, *findings])


def has_one_clock(state: TrainingState, samples: Sequence[TelemetrySample]) -> bool:
    """Return whether all telemetry is from one start: between two starts an energy counter keeps counting."""
    times = [sample.time_seconds for sample in samples]
    return state.starts == 1 and times == sorted(times)
