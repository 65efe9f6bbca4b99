"""From interleaved blocks to the results of both variants and their comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainstone.config.load import flatten, format_value
from trainstone.config.schema import Config
from trainstone.engine.fit import Fitted
from trainstone.flows import speed_summary
from trainstone.flows.bench import result
from trainstone.flows.compare.interleave import Interleaving
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.observation import Observation
from trainstone.measure.recorder import StepRecorder
from trainstone.results.compare_blocks import gather_findings, write_comparison
from trainstone.results.findings import check_throughput, finding
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema import run as schema
from trainstone.results.step_summary import summarise_steps
from trainstone.results.telemetry import read_samples, summarise
from trainstone.stats.ratio import MIN_ROUNDS, ORDER, compare_blocks
from trainstone.units import format_count

# What is called and how long it is measured is no difference in what runs.
NOT_COMPARED = ("name", "version", "summary", "system", "measure")


@dataclass(frozen=True)
class Variant:
    """One of the two: what was asked for, what runs, and where it is written."""

    requested: Config
    fitted: Fitted
    folder: RunFolder
    recorder: StepRecorder


def contrast(life: Lifecycle, variants: Mapping[str, Variant], both: Interleaving, seen: Observation) -> None:
    """Write the final result of each variant, then the parent's with the comparison."""
    program_seconds, telemetry = life.seconds, summarise_telemetry(variants, both, seen)
    findings = {name: conclude_variant(variant, seen, telemetry) for name, variant in variants.items()}
    fitted = {name: variant.fitted.config for name, variant in variants.items()}
    labels, blocks = label_pair(fitted["A"], fitted["B"]), both.whole_rounds()
    num_rounds = len(blocks) // len(ORDER)
    comparison, message = None, format_count(num_rounds, "complete round")
    if blocks:
        runs = {name: f"points/{variant.folder.path.name}" for name, variant in variants.items()}
        requested = {name: variant.requested for name, variant in variants.items()}
        paired = compare_blocks(*both.sum_blocks(blocks))
        comparison = write_comparison(paired, fitted["A"].name, labels, runs, describe_unrequested(requested, fitted))
    found = gather_findings(findings)
    if num_rounds < MIN_ROUNDS:
        few = f"A against B: no interval, not established: {message} {' '.join(ORDER)}, {MIN_ROUNDS} needed"
        found = [finding("few-steps", few), *found]
    if seen.interrupted:
        found.append(finding("interrupted", f"stopped by {seen.interrupted} after {message}"))
    noises = [variant.folder.result.noise for variant in variants.values()]
    life.run.update(
        status="interrupted" if seen.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not assessed",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=speed_summary.describe_memory(seen),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[speed_summary.describe_device(variants["A"].fitted, seen.reader, telemetry)],
        findings=found,
    )


def conclude_variant(variant: Variant, seen: Observation, telemetry: dict[str, Any]) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return its findings.

    Utilisation, energy, memory and page faults are of the process and so of both: a variant has none of its own.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = result.check_interruption(seen.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    device = speed_summary.describe_device(fitted, seen.reader, {}, summary)
    speed = speed_summary.describe_speed(fitted, summary, telemetry, seen, [device])
    found = [*fitted.findings, *check_throughput(summary.throughput, summary.step_seconds), *speed["findings"]]
    variant.folder.update(
        status="interrupted" if seen.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=speed["noise"],
        devices=[device],
        findings=[*found, *stopped],
        verdict=speed_summary.write_speed_verdict(fitted, summary, None, speed["noise"]),
    )
    return found


def summarise_telemetry(variants: Mapping[str, Variant], both: Interleaving, seen: Observation) -> dict[str, Any]:
    """Sum up the samples from the first block on; two samples per second cannot tell one arm from the other."""
    begins, ends = list[float](), list[float]()
    for name, variant in variants.items():
        if len(variant.recorder):
            columns = variant.recorder.columns()
            first = next((block.first_step for block in both.blocks if block.arm == name), 0)
            begins.append(float(columns["start_seconds"][first]))
            ends.append(float(columns["start_seconds"][-1] + columns["step_seconds"][-1]))
    samples = read_samples(seen.telemetry_file)
    return summarise(samples, min(begins, default=0.0), max(ends, default=0.0), meter=seen.reader.meter)


def list_differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    left, right = (dict(flatten(config.model_dump(exclude=set(NOT_COMPARED)))) for config in (a, b))
    return [(key, left[key], right[key]) for key in left if left[key] != right[key]]


def label_pair(a: Config, b: Config) -> dict[str, str]:
    """Name each by its recipe where they have two, else by its values of the keys in which they differ."""
    differing = list_differences(a, b)
    if a.name != b.name or not differing:
        return {"A": a.name, "B": b.name}
    return {
        arm: ", ".join(f"{row[0]}={format_value(row[column])}" for row in differing)
        for arm, column in (("A", 1), ("B", 2))
    }


def describe_unrequested(requested: Mapping[str, Config], fitted: Mapping[str, Config]) -> list[str]:
    """Say where the machine made the two differ though nobody asked for it, or made them the same."""
    wanted = {key for key, _, _ in list_differences(requested["A"], requested["B"])}
    differing = list_differences(fitted["A"], fitted["B"])
    if wanted and not differing:
        return ["in nothing: fitted to this machine, both come to the same"]
    return [
        f"{key}: {format_value(left)} and {format_value(right)}, as fitted to this machine"
        for key, left, right in differing
        if key not in wanted
    ]
