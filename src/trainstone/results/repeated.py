"""Combines runs of the same thing into one result: throughput between runs, all findings once; train --runs scored."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from trainstone.machine.health import Noise
from trainstone.results import learning, stats
from trainstone.results.mlperf.score import olympic_mean, rank_times
from trainstone.results.quality import Quality, Repeated, TrainedRun
from trainstone.results.schema import FINISHED, Finding, Result, Status, Throughput
from trainstone.results.verdicts import describe_goal, write_repeated_verdict, write_runs_verdict
from trainstone.units import format_seconds

FEWEST_SCORED = 3
"""Runs, so that one is left when the fastest and the slowest are dropped."""


class BegunRun(NamedTuple):
    """A run and its folder, as its parent names it."""

    folder: str
    result: Result

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end, target or not."""
        return self.result.status in FINISHED


def combine_runs(children: Sequence[Result]) -> dict[str, Any]:
    """Return the keys of the combined result; runs without a number are left out and named."""
    measured = [child for child in children if child.throughput is not None]
    findings = gather_findings([child.findings for child in children], "runs")
    if not measured:
        return {"findings": findings}
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
    noise = worst_noise(measured)
    title = (measured[0].verdict or measured[0].recipe.name).partition(":")[0]
    loaders = [child.loader for child in measured if child.loader is not None]
    return {
        "throughput": combined,
        "noise": noise,
        "verdict": write_runs_verdict(title, combined, loaders, noise),
        "findings": findings,
    }


def worst_noise(children: Sequence[Result]) -> Noise | None:
    """Return the noise of the run that had most of it."""
    noises = [child.noise for child in children if child.noise is not None]
    return max(noises, key=lambda noise: noise.grade, default=None)


def gather_findings(of_runs: Sequence[Sequence[Finding]], noun: str) -> list[Finding]:
    """Return each code once, with the number of runs that had it and the last one's words."""
    by_code: dict[str, list[Finding]] = {}
    for found in (found for findings in of_runs for found in findings):
        by_code.setdefault(found.code, []).append(found)
    return [
        group[-1].model_copy(update={"message": f"{len(group)} of {len(of_runs)} {noun}: {group[-1].message}"})
        for group in by_code.values()
    ]


def combine_trainings(result: Result, children: Sequence[BegunRun]) -> dict[str, Any]:
    """Return the keys of the combined result; `children` are those begun, by seed. Its status is not among them."""
    assert result.repeated is not None
    over = [child.result for child in children if child.is_over]
    runs = [describe_run(child) for child in children]
    repeated = score_runs(result.repeated.model_copy(update={"runs": runs}))
    quality = combine_quality(repeated, over, result.process.starts)
    title = (over[0].verdict or over[0].recipe.name).partition(":")[0] if over else result.recipe.name
    told = {"repeated": repeated, "quality": quality, "devices": over[0].devices if over else []}
    return combine_runs(over) | told | {"verdict": write_repeated_verdict(repeated, quality, title)}


def describe_run(child: BegunRun) -> TrainedRun:
    """Return a run's row; its quality only if it was evaluated."""
    result, quality = child.result, child.result.quality
    row = TrainedRun(seed=result.config["seed"], run=child.folder, status=result.status, starts=result.process.starts)
    if quality is None:
        return row
    found = {"epochs": quality.epochs, "value": quality.value if quality.history else None}
    reached = result.status == "target_reached"
    return row.model_copy(
        update=found | {"reached": reached, "seconds_to_target": quality.seconds_to_target if reached else None}
    )


def score_runs(repeated: Repeated) -> Repeated:
    """Score them when all are over: of three and more the fastest and the slowest are dropped, the rest is averaged.

    A run that missed the target is the slowest; where two did, there is no score (MLPerf's rules).
    """
    runs = [run.model_copy(update={"counted": False}) for run in repeated.runs]
    missed = sum(not run.reached for run in runs)
    complete = learning.is_complete(repeated) and len(runs) >= FEWEST_SCORED
    if not complete or missed > 1:
        return repeated.model_copy(update={"runs": runs, "score_seconds": None, "score_epochs": None})
    for place in rank_times([run.seconds_to_target for run in runs])[1:-1]:
        runs[place] = runs[place].model_copy(update={"counted": True})
    return repeated.model_copy(
        update={
            "runs": runs,
            "score_seconds": olympic_mean([_or_never(run, run.seconds_to_target) for run in runs]),
            "score_epochs": olympic_mean([_or_never(run, run.epochs) for run in runs]),
        }
    )


def judge_repeated(repeated: Repeated, target: float | None) -> Status:
    """Say in a word how runs ended that have all come to their end."""
    if target is None:
        return "ok"
    return "target_reached" if all(run.reached for run in repeated.runs) else "target_missed"


def combine_quality(repeated: Repeated, over: Sequence[Result], starts: int) -> Quality | None:
    """Return the medians of runs that are over; a time to the target only where all runs reached it."""
    qualities = [result.quality for result in over if result.quality is not None]
    if not qualities:
        return None
    first = qualities[0]
    values = [quality.value for quality in qualities if quality.history and quality.value is not None]
    times = [run.seconds_to_target for run in repeated.runs if run.seconds_to_target is not None]
    return Quality(
        metric=first.metric,
        value=median(values) if values else None,
        target=first.target,
        seconds_to_target=median(times) if len(times) == repeated.num_runs else None,
        epochs=median(quality.epochs for quality in qualities),
        starts=starts,
        parameters=first.parameters,
        global_batch=first.global_batch,
    )


def list_repeated_facts(repeated: Repeated, quality: Quality) -> list[tuple[str, str]]:
    """Names and values, the most important first: for tiles."""
    over = [run for run in repeated.runs if run.status in FINISHED]
    facts = [("runs", f"{len(over)} of {repeated.num_runs}" if len(over) < repeated.num_runs else str(len(over)))]
    if quality.target is not None:
        facts.append((f"reached {describe_goal(quality)}", f"{sum(run.reached for run in over)} of {len(over)}"))
    if quality.seconds_to_target is not None:
        facts.append(("time to target, median", format_seconds(quality.seconds_to_target)))
    if repeated.score_seconds is not None:
        facts.append(("olympic mean", format_seconds(repeated.score_seconds)))
    if quality.value is not None:
        best = learning.format_metric(quality.metric, quality.value, quality.target)
        of_best = "" if all(run.reached for run in over) else "best "
        facts.append((f"{of_best}{learning.name_metric(quality.metric)}, median", best))
    facts.append(("epochs, median", learning.format_epoch(quality.epochs)))
    return facts


def _or_never(run: TrainedRun, number: float | None) -> float:
    return number if run.reached and number is not None else math.inf
