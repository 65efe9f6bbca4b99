"""Combine child runs into one result: bench --runs, train --runs with its score, the points of a sweep. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

from trainstone.machine.noise import Noise
from trainstone.results import training, verdicts
from trainstone.results.findings import finding
from trainstone.results.knee import label_row
from trainstone.results.mlperf.summary import olympic_mean, rank_times
from trainstone.results.schema.quality import Quality, Repeated, TrainedRun
from trainstone.results.schema.run import FINISHED, Device, Finding, Point, Result, Status, Throughput
from trainstone.results.schema.sweep import Sweep
from trainstone.stats import throughput as stats
from trainstone.units import format_seconds

MIN_SCORED_RUNS = 3  # one is left after dropping the fastest and the slowest
# Findings that the sweep has itself, or that belong to a single run.
OWN_CODES = frozenset({"interrupted", "killed", "out-of-memory", "run-failed"})
# Findings taken from profiles; those about speed come from the bench runs.
PROFILE_CODES = frozenset({"not-measured", "profiled"})
# A hint for one point may not suit a sweep: a smaller batch is another point.
HINTS = {"few-steps": "measure each point longer: --seconds N"}


class StartedRun(NamedTuple):
    folder: str
    result: Result

    @property
    def is_finished(self) -> bool:
        return self.result.status in FINISHED


def combine_runs(children: Sequence[Result]) -> dict[str, Any]:
    measured = [child for child in children if child.throughput is not None]
    findings = gather_findings([child.findings for child in children], "runs")
    if not measured:
        return {"findings": findings}
    throughputs = [child.throughput for child in measured if child.throughput is not None]
    between = stats.estimate_between_runs([throughput.images_per_second for throughput in throughputs])
    combined = Throughput(
        **asdict(between) | {"num_steps": sum(throughput.num_steps for throughput in throughputs)},
        steady=all(throughput.steady for throughput in throughputs),
        steady_from_step=max(throughput.steady_from_step for throughput in throughputs),
    )
    noise = worst_noise(measured)
    title = (measured[0].verdict or measured[0].recipe.name).partition(":")[0]
    loaders = [child.loader for child in measured if child.loader is not None]
    return {
        "throughput": combined,
        "noise": noise,
        "verdict": verdicts.format_runs_verdict(title, combined, loaders, noise),
        "findings": findings,
    }


def worst_noise(children: Sequence[Result]) -> Noise | None:
    noises = [child.noise for child in children if child.noise is not None]
    return max(noises, key=lambda noise: noise.grade, default=None)


def gather_findings(of_runs: Sequence[Sequence[Finding]], noun: str) -> list[Finding]:
    """Return each code once, with the number of runs that had it and the last run's message."""
    by_code: dict[str, list[Finding]] = {}
    for found in (found for findings in of_runs for found in findings):
        by_code.setdefault(found.code, []).append(found)
    return [
        group[-1].model_copy(update={"message": f"{len(group)} of {len(of_runs)} {noun}: {group[-1].message}"})
        for group in by_code.values()
    ]


def combine_trainings(result: Result, children: Sequence[StartedRun]) -> dict[str, Any]:
    """Return the keys of the combined result, without its status; `children` are the started runs, by seed."""
    assert result.repeated is not None
    finished = [child.result for child in children if child.is_finished]
    runs = []
    for folder, child in children:
        quality, reached = child.quality, child.quality is not None and child.status == "target_reached"
        run = TrainedRun(
            seed=child.config["seed"],
            run=folder,
            status=child.status,
            value=quality.value if quality and quality.history else None,
            epochs=quality.epochs if quality else None,
            seconds_to_target=quality.seconds_to_target if quality and reached else None,
            reached=reached,
            starts=child.process.starts,
        )
        runs.append(run)
    repeated = score_runs(result.repeated.model_copy(update={"runs": runs}))
    quality = combine_quality(repeated, finished, result.process.starts)
    first = finished[0] if finished else None
    title = (first.verdict or first.recipe.name).partition(":")[0] if first else result.recipe.name
    verdict = verdicts.format_repeated_verdict(repeated, quality, title)
    own = {"repeated": repeated, "quality": quality, "devices": first.devices if first else [], "verdict": verdict}
    return combine_runs(finished) | own


def score_runs(repeated: Repeated) -> Repeated:
    """Score three or more runs once all have finished: drop the fastest and the slowest, average the rest.

    A run that missed the target is the slowest; two such runs give no score (MLPerf's rules).
    """
    runs = [run.model_copy(update={"counted": False}) for run in repeated.runs]
    scores: dict[str, float | None] = {"score_seconds": None, "score_epochs": None}
    missed = sum(not run.reached for run in runs)
    if training.is_complete(repeated) and len(runs) >= MIN_SCORED_RUNS and missed <= 1:
        for index in rank_times([run.seconds_to_target for run in runs])[1:-1]:
            runs[index] = runs[index].model_copy(update={"counted": True})
        times = {"score_seconds": [run.seconds_to_target for run in runs], "score_epochs": [run.epochs for run in runs]}
        for name, values in times.items():
            pairs = zip(runs, values, strict=True)
            scores[name] = olympic_mean([v if run.reached and v is not None else math.inf for run, v in pairs])
    return repeated.model_copy(update={"runs": runs, **scores})


def assess_repeated(repeated: Repeated, target: float | None) -> Status:
    if target is None:
        return "ok"
    return "target_reached" if all(run.reached for run in repeated.runs) else "target_missed"


def combine_quality(repeated: Repeated, finished: Sequence[Result], starts: int) -> Quality | None:
    """Return the medians of finished runs; a time to the target only if all runs reached it."""
    qualities = [result.quality for result in finished if result.quality is not None]
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
    finished = [run for run in repeated.runs if run.status in FINISHED]
    num = len(finished)
    facts = [("runs", f"{num} of {repeated.num_runs}" if num < repeated.num_runs else str(num))]
    if quality.target is not None:
        reached = f"{sum(run.reached for run in finished)} of {num}"
        facts.append((f"reached {verdicts.describe_target(quality)}", reached))
    if quality.seconds_to_target is not None:
        facts.append(("time to target, median", format_seconds(quality.seconds_to_target)))
    if repeated.score_seconds is not None:
        facts.append(("olympic mean", format_seconds(repeated.score_seconds)))
    if quality.value is not None:
        best = training.format_metric(quality.metric, quality.value, quality.target)
        of_best = "" if all(run.reached for run in finished) else "best "
        facts.append((f"{of_best}{training.name_metric(quality.metric)}, median", best))
    facts.append(("epochs, median", training.format_epoch(quality.epochs)))
    return facts


def collect_measured(child: Result) -> dict[str, Any]:
    measured, used, memory = child.throughput, child.utilisation, child.memory
    if measured is None:
        return {}
    train = child.config.get("train", {})
    batch, accumulate = train.get("batch_size"), train.get("accumulate", 1)
    known = isinstance(batch, int) and isinstance(accumulate, int)
    return {
        **measured.model_dump(include={"images_per_second", "ci95", "ci_covers", "num_steps"}),
        "images_per_step": batch * accumulate * child.world.ranks if known else None,
        # Too few steps to assess: the missing interval already shows it
        "steady": measured.steady or measured.trend_percent is None,
        "mfu": used.mfu if used else None,
        "limit": used.limit if used else None,
        "memory_bytes": (memory.peak_device_bytes or memory.peak_host_bytes) if memory else None,
        "noise": child.noise.grade if child.noise else "",
    }


def collect_profiled(child: Result, *, cores: bool = False) -> dict[str, Any]:
    """Return what a profile adds to its row; `cores`: core counters were requested, so their absence is noted."""
    timeline = child.timeline
    columns: dict[str, Any] = {} if timeline is None else {"compute_utilisation": timeline.compute_utilisation}
    if timeline is not None and timeline.cores is not None:
        return columns | {"cores_percent": timeline.cores.pipes_percent}
    return columns | ({"note": "no core counters"} if cores else {})


def list_points(sweep: Sweep) -> list[Point]:
    points = []
    for row in sweep.rows:
        label = label_row(sweep, row)
        points += [Point(label=label, run=row.run)] if row.run else []
        points += [Point(label=f"{label}, profile", run=row.profile_run)] if row.profile_run else []
    return points


def combine_sweep(sweep: Sweep, children: Sequence[Result], profiles: Sequence[Result] = ()) -> dict[str, Any]:
    sweep = verdicts.assess_sweep(sweep)
    titles = [child.verdict.partition(":")[0] for child in children if child.verdict]
    of_points = [[f for f in child.findings if f.code not in OWN_CODES] for child in children]
    of_profiles = [[f for f in one.findings if f.code in PROFILE_CODES and f.severity != "info"] for one in profiles]
    gathered = [*gather_findings(of_points, "points"), *gather_findings(of_profiles, "profiles")]
    hinted = [found.model_copy(update={"hint": HINTS.get(found.code, found.hint)}) for found in gathered]
    return {
        "sweep": sweep,
        "verdict": verdicts.format_sweep_verdict(sweep, titles[0] if titles else "sweep"),
        "points": list_points(sweep),
        "noise": worst_noise(children),
        "findings": [*check_points(sweep), *hinted],
    }


def check_points(sweep: Sweep) -> list[Finding]:
    findings = []
    failed = [row for row in sweep.rows if row.status == "failed"]
    if failed:
        causes = "; ".join(f"{label_row(sweep, row)}: {row.note}" for row in failed)
        findings.append(finding("child-failed", f"{len(failed)} of {sweep.num_points} points failed: {causes}"))
    full = [row for row in sweep.rows if row.status == "out_of_memory"]
    if full:
        untried = [row for row in sweep.rows if row.status == "not_tried"]
        beyond = f"; larger points not tried: {verdicts.join_labels(sweep, untried)}" if untried else ""
        why = full[0].note.removeprefix("out of memory: ")
        message = f"out of memory at {verdicts.join_labels(sweep, full)} ({why}){beyond}"
        hint = "expected: a sweep ends at the largest point that fits in memory"
        findings.append(finding("out-of-memory", message, severity="info", hint=hint))
    unprofiled = [row for row in sweep.rows if row.profile == "failed"]
    if unprofiled:
        message = f"no profile for {verdicts.join_labels(sweep, unprofiled)}: {unprofiled[0].note}"
        findings.append(finding("profile-failed", message))
    return findings


def strip_devices(devices: Sequence[Device]) -> list[Device]:
    return [Device(**device.model_dump(include={"host", "name", "label", "uuid", "rank"})) for device in devices]
