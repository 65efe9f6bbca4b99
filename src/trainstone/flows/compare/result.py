"""Write the results of both variants of `bench --against`, and their comparison."""

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
from trainstone.results.findings import check_throughput, finding
from trainstone.results.interleaved import build_comparison, gather_findings
from trainstone.results.run_folder import RunFolder
from trainstone.results.schema import run as schema
from trainstone.results.step_summary import summarise_steps
from trainstone.results.telemetry import read_samples, summarise
from trainstone.stats.ratio import MIN_ROUNDS, ORDER, compare_blocks
from trainstone.units import format_count

# Names and measuring time do not change what runs.
NOT_COMPARED = ("name", "version", "summary", "system", "measure")


@dataclass(frozen=True)
class Variant:
    """One of the two: the requested and the fitted configuration, and where results are written."""

    requested: Config
    fitted: Fitted
    folder: RunFolder
    recorder: StepRecorder


def write_pair(life: Lifecycle, variants: Mapping[str, Variant], both: Interleaving, observation: Observation) -> None:
    """Write the final result of each variant, then the parent's result with the comparison."""
    program_seconds, telemetry = life.seconds, summarise_telemetry(variants, both, observation)
    findings = {name: conclude_variant(variant, observation, telemetry) for name, variant in variants.items()}
    fitted = {name: variant.fitted.config for name, variant in variants.items()}
    labels, blocks = label_pair(fitted["A"], fitted["B"]), both.complete_rounds()
    num_rounds = len(blocks) // len(ORDER)
    comparison, rounds = None, format_count(num_rounds, "complete round")
    if blocks:
        runs = {name: f"points/{variant.folder.path.name}" for name, variant in variants.items()}
        requested = {name: variant.requested for name, variant in variants.items()}
        paired = compare_blocks(*both.sum_blocks(blocks))
        comparison = build_comparison(paired, fitted["A"].name, labels, runs, describe_unrequested(requested, fitted))
    found = gather_findings(findings)
    if num_rounds < MIN_ROUNDS:
        few = f"A against B: no interval, not established: {rounds} {' '.join(ORDER)}, {MIN_ROUNDS} needed"
        found = [finding("few-steps", few), *found]
    if observation.interrupted:
        found.append(finding("interrupted", f"stopped by {observation.interrupted} after {rounds}"))
    noises = [variant.folder.result.noise for variant in variants.values()]
    life.run.update(
        status="interrupted" if observation.interrupted else "ok",
        comparison=comparison,
        verdict=comparison.verdict if comparison else f"A ({labels['A']}) against B ({labels['B']}): not assessed",
        phases=schema.Phases(program_seconds=program_seconds),
        memory=speed_summary.build_memory(observation),
        noise=max((noise for noise in noises if noise is not None), key=lambda noise: noise.grade, default=None),
        devices=[speed_summary.build_device(variants["A"].fitted, observation.reader, telemetry)],
        findings=found,
    )


def conclude_variant(variant: Variant, observation: Observation, telemetry: dict[str, Any]) -> list[schema.Finding]:
    """Write one variant's result as a run of its own; return its findings.

    Utilisation, energy, memory and page faults belong to the process, so a single variant does not have them.
    """
    fitted, recorder = variant.fitted, variant.recorder
    stopped = result.check_interruption(observation.interrupted, len(recorder))
    if not len(recorder):
        variant.folder.update(status="interrupted", findings=[*fitted.findings, *stopped])
        return list(fitted.findings)
    summary = summarise_steps(recorder.columns(), compiled=fitted.config.engine.compile)
    device = speed_summary.build_device(fitted, observation.reader, {}, summary)
    speed = speed_summary.summarise_speed(fitted, summary, telemetry, observation, [device])
    found = [*fitted.findings, *check_throughput(summary.throughput, summary.step_seconds), *speed["findings"]]
    variant.folder.update(
        status="interrupted" if observation.interrupted else "ok",
        throughput=summary.throughput,
        step_seconds=summary.step_seconds,
        phases=summary.phases,
        noise=speed["noise"],
        devices=[device],
        findings=[*found, *stopped],
        verdict=speed_summary.write_speed_verdict(fitted, summary, None, speed["noise"]),
    )
    return found


def summarise_telemetry(
    variants: Mapping[str, Variant], both: Interleaving, observation: Observation
) -> dict[str, Any]:
    """Summarise telemetry from the first block on, for both arms: samples are too rare to separate the arms."""
    begins, ends = list[float](), list[float]()
    for name, variant in variants.items():
        if len(variant.recorder):
            columns = variant.recorder.columns()
            first = next((block.first_step for block in both.blocks if block.arm == name), 0)
            begins.append(float(columns["start_seconds"][first]))
            ends.append(float(columns["start_seconds"][-1] + columns["step_seconds"][-1]))
    samples = read_samples(observation.telemetry_file)
    return summarise(samples, min(begins, default=0.0), max(ends, default=0.0), meter=observation.reader.meter)


def list_differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    left, right = (dict(flatten(config.model_dump(exclude=set(NOT_COMPARED)))) for config in (a, b))
    return [(key, left[key], right[key]) for key in left if left[key] != right[key]]


def label_pair(a: Config, b: Config) -> dict[str, str]:
    """Label each variant with its recipe if they differ, else with its values of the differing keys."""
    differing = list_differences(a, b)
    if a.name != b.name or not differing:
        return {"A": a.name, "B": b.name}
    return {
        arm: ", ".join(f"{row[0]}={format_value(row[column])}" for row in differing)
        for arm, column in (("A", 1), ("B", 2))
    }


def describe_unrequested(requested: Mapping[str, Config], fitted: Mapping[str, Config]) -> list[str]:
    """Return sentences about differences that fitting introduced without a request, or removed."""
    wanted = {key for key, _, _ in list_differences(requested["A"], requested["B"])}
    differing = list_differences(fitted["A"], fitted["B"])
    if wanted and not differing:
        return ["in nothing: fitted to this machine, both are the same"]
    return [
        f"{key}: {format_value(left)} and {format_value(right)}, as fitted to this machine"
        for key, left, right in differing
        if key not in wanted
    ]
