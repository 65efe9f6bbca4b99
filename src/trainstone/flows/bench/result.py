"""Write the result of a bench: throughput, utilisation, noise, findings and verdict from what was recorded."""

from typing import NamedTuple

import numpy as np

from trainstone.data.loader import Loader
from trainstone.engine.fit import Fitted
from trainstone.flows.bench.input_baselines import InputBaselines, assess_loader
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import Observation
from trainstone.flows.speed_summary import (
    build_device,
    check_skipped,
    gather_devices,
    summarise_rank,
    summarise_speed,
    write_speed_verdict,
)
from trainstone.measure.recorder import StepRecorder
from trainstone.results import findings as checks
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema


class SideMeasurements(NamedTuple):
    """Measurements of a bench beside its steps."""

    loader: Loader | None = None
    """Loader of the measured steps; None: synthetic batches."""
    baselines: InputBaselines | None = None
    communication: schema.Communication | None = None


def conclude(
    life: Lifecycle,
    fitted: Fitted,
    recorder: StepRecorder,
    observation: Observation,
    beside: SideMeasurements,
    *,
    excluded_steps: range = range(0),
    title: str = "",
) -> None:
    """Turn records into the final result and write it. All ranks must call this: each describes its device.

    `excluded_steps`: profiled steps, which are recorded but do not count. `title`: replaces the workload's title in the
    verdict.
    """
    run, ranks, loader = life.run, life.rank.world, beside.loader
    if not len(recorder):
        stopped = finding("interrupted", "stopped before the first step ended")
        run.update(status="interrupted", findings=[*fitted.findings, stopped])
        return
    summary, telemetry = summarise_rank(fitted, recorder, observation, excluded_steps)
    devices = gather_devices(life.world, build_device(fitted, observation.reader, telemetry, summary))
    status: schema.Status = "interrupted" if observation.interrupted else "ok"
    if not devices:
        run.update(status=status)
        return
    loader_result = (
        assess_loader(fitted.config, loader, beside.baselines, summary) if loader and beside.baselines else None
    )
    faults = np.delete(recorder.page_faults(), excluded_steps)[summary.window]
    speed = summarise_speed(fitted, summary, telemetry, observation, devices, loader_result, faults)
    no_baselines = []
    if run.result.kind == "bench" and ranks > 1 and loader:
        message = f"synthetic data and the loader without training are not measured with {ranks} ranks, only with one"
        hint = "to measure all three speeds, run on a single rank: trainstone bench --data DIR"
        no_baselines = [*check_skipped(loader), finding("not-measured", message, hint=hint)]
    findings = [
        *fitted.findings,
        *checks.check_throughput(speed["throughput"], summary.step_seconds),
        *speed.pop("findings"),
        *no_baselines,
        *check_interruption(observation.interrupted, len(recorder)),
    ]
    run.update(
        **speed,
        status=status,
        phases=summary.phases.model_copy(update={"program_seconds": life.seconds}),
        communication=beside.communication,
        loader=loader_result,
        devices=devices,
        findings=findings,
        verdict=write_speed_verdict(
            fitted, summary, speed["utilisation"], speed["noise"], loader_result, title=title, ranks=ranks
        ),
    )


def check_interruption(signal_name: str | None, num_steps: int) -> list[schema.Finding]:
    return [finding("interrupted", f"stopped by {signal_name} after {num_steps} steps")] if signal_name else []
