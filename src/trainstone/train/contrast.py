"""Judges what two interleaved variants recorded, each by itself and one against the other: ends train/against.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainstone.config.schema import Config
from trainstone.measure.devices import name_device
from trainstone.measure.recorder import StepRecorder
from trainstone.measure.telemetry import Reader
from trainstone.results import schema
from trainstone.results.checks import check_limits, check_throughput, finding
from trainstone.results.paired import MIN_ROUNDS, ORDER, Paired, compare_blocks, gather_findings, write_comparison
from trainstone.results.samples import read_samples, summarise
from trainstone.results.store import RunFolder
from trainstone.results.summary import summarise_steps
from trainstone.train.conclude import (
    assess_noise,
    check_setting,
    describe_device,
    describe_memory,
    tell_interruption,
    tell_throttling,
    tell_unmeasured,
    tell_verdict,
)
from trainstone.train.fit import Fitted
from trainstone.train.interleave import Arm, Interleaved, sum_blocks
from trainstone.train.observation import Observed
from trainstone.train.variants import label_pair, tell_unasked
from trainstone.units import format_count


@dataclass(frozen=True)
class Variant:
    """One of the two: what was asked for, what runs, and where it is written."""

    asked: Config
    fitted: Fitted
    folder: RunFolder
    recorder: StepRecorder
    arm: Arm


def contrast(
    run: RunFolder,
    variants: Mapping[str, Variant],
    done: Interleaved,
    seen: Observed,
    *,
    program_seconds: float,
) -> None:
    """Write the final result of each variant, then the parent's with the comparison."""
    telemetry = summarise_telemetry(variants, done, seen)
    throttled = tell_throttling(telemetry)
    findings = {name: conclude_variant(variant, seen, throttled) for name, variant in variants.items()}
    fitted = {name: variant.fitted.config for name, variant in variants.items()}
    labels, paired = label_pair(fitted["A"], fitted["B"]), compare_rounds(variants, done)
    comparison = None
    if paired is not None:
        runs = {name: f"points/{variant.folder.path.name}" for name, variant in variants.items()}
        asked = {name: variant.asked for name, variant in variants.items()}
        comparison = write_comparison(paired, fitted["A"].name, labels, runs, tell_unasked(asked, fitted))
    noises = [variant.folder.result.noise for variant in variants.values()]
    num_rounds = paired.num_rounds if paired else 0
    run.update(
        status="interrupted" if seen.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not judged",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=describe_memory(seen),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[describe_shared_device(run.result.process.host, variants["A"].fitted, telemetry, seen.reader)],
        findings=[
            *tell_few_rounds(num_rounds),
            *gather_findings(findings),
            *tell_unmeasured(seen.reader.unsupported),
            *tell_stop(seen.interrupted, num_rounds),
        ],
    )


def conclude_variant(variant: Variant, seen: Observed, throttled: str | None) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return what is doubtful about it.

    Utilisation, energy, memory and page faults are of the process and so of both: a variant has none of its own.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = tell_interruption(seen.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    noise = assess_noise(seen, summary, throttled)
    findings = [
        *fitted.findings,
        *check_throughput(summary.throughput, summary.step_seconds),
        *check_limits(schema.Utilisation(), summary.data_share, throttled),
        *check_setting(fitted, noise, describe_memory(seen)),
    ]
    variant.folder.update(
        status="interrupted" if seen.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=noise,
        devices=[describe_device(variant.folder.result.process.host, fitted, summary, {}, seen.reader)],
        findings=[*findings, *stopped],
        verdict=tell_verdict(fitted, summary, None, noise),
    )
    return findings


def compare_rounds(variants: Mapping[str, Variant], done: Interleaved) -> Paired | None:
    """Judge the complete rounds; None if there is none."""
    blocks = done.whole_rounds()
    arms = {name: variant.arm for name, variant in variants.items()}
    return compare_blocks(*sum_blocks(arms, blocks)) if blocks else None


def summarise_telemetry(variants: Mapping[str, Variant], done: Interleaved, seen: Observed) -> dict[str, Any]:
    """Sum up the samples from the first block on; a sample a half second cannot tell one arm from the other."""
    begins, ends = [], []
    for name, variant in variants.items():
        if not len(variant.recorder):
            continue
        columns = variant.recorder.columns()
        first = next((block.first_step for block in done.blocks if block.arm == name), 0)
        begins.append(float(columns["start_seconds"][first]))
        ends.append(float(columns["start_seconds"][-1] + columns["step_seconds"][-1]))
    samples = read_samples(seen.telemetry_file)
    return summarise(samples, min(begins, default=0.0), max(ends, default=0.0), meter=seen.reader.meter)


def describe_shared_device(host: str, fitted: Fitted, telemetry: Mapping[str, Any], reader: Reader) -> schema.Device:
    """The device both ran on, without a speed: it is of neither."""
    return schema.Device(
        host=host,
        name=name_device(fitted.device),
        label=str(fitted.device),
        telemetry={name: value for name, value in telemetry.items() if value is not None},
        unsupported=reader.unsupported,
    )


def tell_few_rounds(num_rounds: int) -> list[schema.Finding]:
    """A finding where there is no interval."""
    if num_rounds >= MIN_ROUNDS:
        return []
    rounds = f"{format_count(num_rounds, 'complete round')} {' '.join(ORDER)}, {MIN_ROUNDS} needed"
    return [finding("few-steps", f"A against B: no interval, not established: {rounds}")]


def tell_stop(signal_name: str | None, num_rounds: int) -> list[schema.Finding]:
    """A finding where somebody stopped the comparison."""
    told = f"stopped by {signal_name} after {format_count(num_rounds, 'complete round')}"
    return [finding("interrupted", told)] if signal_name else []
