"""The end of a training run: last lines of its files, and the result."""

import shlex
from collections.abc import Sequence

from trainstone.engine.fit import Fitted
from trainstone.flows.evaluate.run import describe_skipped
from trainstone.flows.observation import Observation
from trainstone.flows.speed_summary import check_skipped, describe_device, describe_speed, gather_devices, summarise_own
from trainstone.flows.train.loop import TrainingContext
from trainstone.flows.train.state import TrainingState
from trainstone.machine.signals import OTHER_RANK
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema
from trainstone.results.schema.run import Status
from trainstone.results.telemetry import TelemetrySample, read_samples
from trainstone.results.training import check_speed
from trainstone.results.verdicts import write_learning_verdict
from trainstone.workloads.registry import WORKLOADS


def write_end(context: TrainingContext, state: TrainingState) -> None:
    """Write how it ended, before anything else is judged: whoever is killed now has come to the end all the same."""
    config, run = context.config, context.life.run
    signal_name = context.life.signals.received or OTHER_RANK
    run.begin()
    validation = context.validation
    quality = state.quality(config.eval, ended=validation is None)
    status: Status = "ok" if config.eval.target is None else "target_missed"
    if state.reached:
        status = "target_reached"
    elif state.stopped:
        status = "interrupted"
    # The clock of a run that reached its target stopped with that evaluation: what came after it is not counted.
    phases = run.result.phases if state.reached and run.result.phases else state.phases()
    phases = phases.model_copy(update={"program_seconds": context.life.seconds})
    title = WORKLOADS[config.workload].title(config)
    verdict = write_learning_verdict(
        quality, status, phases, title, stopped_by=signal_name, run=shlex.quote(str(run.path))
    )
    findings = [
        *run.result.findings,
        *check_skipped(context.task.loader),
        *(describe_skipped(validation, state.history[-1].images, config) if validation and state.history else ()),
    ]
    if state.stopped:
        hint = f"go on with: trainstone train --resume {shlex.quote(str(run.path))}"
        findings.append(finding("interrupted", f"stopped by {signal_name} after {state.done:,} steps", hint=hint))
    run.update(status=status, quality=quality, phases=phases, verdict=verdict, findings=findings)
    for sink in context.sinks:
        sink.finish(status)


def conclude_training(context: TrainingContext, fitted: Fitted, state: TrainingState, seen: Observation) -> None:
    run, world, recorder = context.life.run, context.life.world, context.recorder
    summary, telemetry = None, {}
    if len(recorder):  # or stopped before its first step
        summary, telemetry = summarise_own(fitted, recorder, seen)
        if not has_one_clock(state, read_samples(seen.telemetry_file)):
            telemetry |= dict.fromkeys(("joules", "energy_seconds", "average_watts", "meter"))
    # A rank may have lost its steps while others have theirs: all must come here.
    devices = gather_devices(world, describe_device(fitted, seen.reader, telemetry, summary))
    if not devices:
        return
    phases = (run.result.phases or schema.Phases()).model_copy(update={"program_seconds": context.life.seconds})
    run.update(devices=devices, phases=phases)
    if summary is not None:
        speed = describe_speed(fitted, summary, telemetry, seen, run.result.devices)
        found = [*check_speed(speed["throughput"], summary.step_seconds), *speed.pop("findings")]
        run.update(**speed, findings=[*run.result.findings, *found])


def has_one_clock(state: TrainingState, samples: Sequence[TelemetrySample]) -> bool:
    """Say whether telemetry is of a single start: an energy counter went on between two."""
    times = [sample.time_seconds for sample in samples]
    return state.starts == 1 and times == sorted(times)
