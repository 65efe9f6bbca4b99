"""Combines runs of the same thing into one result: throughput between runs, worst noise, all findings once."""

from collections.abc import Sequence
from typing import Any

from trainstone.machine.health import Noise
from trainstone.results import stats
from trainstone.results.schema import Finding, Result, Throughput
from trainstone.results.summary import describe_interval
from trainstone.units import format_rate


def combine_runs(children: Sequence[Result]) -> dict[str, Any]:
    """Return the keys of the combined result; runs without a number are left out and named."""
    measured = [child for child in children if child.throughput is not None]
    if not measured:
        return {"findings": gather_findings(children)}
    throughputs = [child.throughput for child in measured if child.throughput is not None]
    between = stats.throughput_between([throughput.images_per_second for throughput in throughputs])
    combined = Throughput(
        images_per_second=between.images_per_second,
        ci95=between.ci95,
        ci_covers=between.ci_covers,
        steady=all(throughput.steady for throughput in throughputs),
        steady_from_step=max(throughput.steady_from_step for throughput in throughputs),
        num_steps=sum(throughput.num_steps for throughput in throughputs),
    )
    noises = [child.noise for child in measured if child.noise is not None]
    noise: Noise | None = max(noises, key=lambda noise: noise.grade, default=None)
    title = (measured[0].verdict or measured[0].recipe.name).partition(":")[0]
    verdict = f"{title}: {format_rate(combined.images_per_second)} images/s {describe_interval(combined)}"
    fed = [child.loader for child in measured if child.loader is not None]
    if fed:
        verdict += f"; data-bound in {sum(loader.data_bound for loader in fed)} of {len(fed)} runs"
    if noise is not None:
        verdict += f"; worst noise grade {noise.grade}"
    return {
        "throughput": combined,
        "noise": noise,
        "verdict": verdict,
        "findings": gather_findings(children),
    }


def gather_findings(children: Sequence[Result], noun: str = "runs") -> list[Finding]:
    """Each code once, with the number of runs that had it and the last one's words."""
    by_code: dict[str, list[Finding]] = {}
    for child in children:
        for found in child.findings:
            by_code.setdefault(found.code, []).append(found)
    gathered = []
    for group in by_code.values():
        prefix = f"{len(group)} of {len(children)} {noun}: "
        gathered.append(group[-1].model_copy(update={"message": prefix + group[-1].message}))
    return gathered
