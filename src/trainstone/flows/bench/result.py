"""What is recorded while the measured part of a run goes on (steps, telemetry, memory, pressure on the machine), and
what is concluded from it: throughput, utilisation, noise, findings, verdict."""

from typing import NamedTuple

import numpy as np

from trainstone.data.loader import Loader
from trainstone.engine.fit import Fitted
from trainstone.flows.bench.input_baselines import InputBaselines, assess_loader
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import Observation
from trainstone.flows.speed_summary import (
    check_skipped,
    describe_device,
    describe_speed,
    gather_devices,
    summarise_own,
    write_speed_verdict,
)
from trainstone.measure.recorder import StepRecorder
from trainstone.results import findings as checks
from trainstone.results.findings import finding
from trainstone.results.schema import run as schema


class SideMeasurements(NamedTuple):
    """What a bench measured beside its steps."""

    loader: Loader | None = None
    """Of the steps, where batches are real images."""
    alone: InputBaselines | None = None
    communication: schema.Communication | None = None


def conclude(
    life: Lifecycle,
    fitted: Fitted,
    recorder: StepRecorder,
    seen: Observation,
    beside: SideMeasurements,
    *,
    left_out: range = range(0),
    title: str = "",
) -> None:
    """Turn records into the final result and write it. All ranks must call this: each describes its device.

    `left_out`: steps that were profiled, so recorded and not counted. `title`: replaces the workload's own title in
    the verdict.
    """
    run, ranks, loader = life.run, life.rank.world, beside.loader
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
    loader_result = assess_loader(fitted.config, loader, beside.alone, summary) if loader and beside.alone else None
    faults = np.delete(recorder.page_faults(), left_out)[summary.window]
    speed = describe_speed(fitted, summary, telemetry, seen, devices, loader_result, faults)
    unfed = []
    if run.result.kind == "bench" and ranks > 1 and loader:
        message = (
            f"with {ranks} ranks real images are not compared with synthetic ones, and the loader is not timed alone"
        )
        hint = "start `trainstone bench --data DIR` on one rank: it measures all three speeds"
        unfed = [*check_skipped(loader), finding("not-measured", message, hint=hint)]
    findings = [
        *fitted.findings,
        *checks.check_throughput(speed["throughput"], summary.step_seconds),
        *speed.pop("findings"),
        *unfed,
        *check_interruption(seen.interrupted, len(recorder)),
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
