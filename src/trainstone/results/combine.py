"""Combine child runs into one result: --runs, train --runs with its score, the points of a sweep. Pure."""

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

FEWEST_SCORED = 3  # runs, so that one is left when the fastest and the slowest are dropped
# What is told of the sweep itself, or of every run by itself.
NOT_GATHERED = frozenset({"interrupted", "killed", "out-of-memory", "run-failed"})
# What a profile alone can say: its speed, and all doubts about that, are the bench's.
OF_A_PROFILE = frozenset({"not-measured", "profiled"})
# A point's own hint may not hold for a sweep: a smaller batch is another point.
HINTS = {"few-steps": "give each point more time: --seconds N"}


class BegunRun(NamedTuple):
    folder: str
    result: Result

    @property
    def is_over(self) -> bool:
        return self.result.status in FINISHED


def combine_runs(children: Sequence[Result]) -> dict[str, Any]:
    measured = [child for child in children if child.throughput is not None]
    findings = gather_findings([child.findings for child in children], "runs")
    if not measured:
        return {"findings": findings}
    throughputs = [child.throughput for child in measured if child.throughput is not None]
    between = stats.throughput_between([throughput.images_per_second for throughput in throughputs])
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
        "verdict": verdicts.write_runs_verdict(title, combined, loaders, noise),
        "findings": findings,
    }


def worst_noise(children: Sequence[Result]) -> Noise | None:
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
    quality = combine_quality(repeated, over, result.process.starts)
    title = (over[0].verdict or over[0].recipe.name).partition(":")[0] if over else result.recipe.name
    message = {"repeated": repeated, "quality": quality, "devices": over[0].devices if over else []}
    return combine_runs(over) | message | {"verdict": verdicts.write_repeated_verdict(repeated, quality, title)}


def score_runs(repeated: Repeated) -> Repeated:
    """Score them when all are over: of three and more the fastest and the slowest are dropped, the rest is averaged.

    A run that missed the target is the slowest; where two did, there is no score (MLPerf's rules).
    """
    runs = [run.model_copy(update={"counted": False}) for run in repeated.runs]
    scores: dict[str, float | None] = {"score_seconds": None, "score_epochs": None}
    missed = sum(not run.reached for run in runs)
    if training.is_complete(repeated) and len(runs) >= FEWEST_SCORED and missed <= 1:
        for place in rank_times([run.seconds_to_target for run in runs])[1:-1]:
            runs[place] = runs[place].model_copy(update={"counted": True})
        times = {"score_seconds": [run.seconds_to_target for run in runs], "score_epochs": [run.epochs for run in runs]}
        for name, values in times.items():
            pairs = zip(runs, values, strict=True)
            scores[name] = olympic_mean([v if run.reached and v is not None else math.inf for run, v in pairs])
    return repeated.model_copy(update={"runs": runs, **scores})


def assess_repeated(repeated: Repeated, target: float | None) -> Status:
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
    over = [run for run in repeated.runs if run.status in FINISHED]
    facts = [("runs", f"{len(over)} of {repeated.num_runs}" if len(over) < repeated.num_runs else str(len(over)))]
    if quality.target is not None:
        reached = f"{sum(run.reached for run in over)} of {len(over)}"
        facts.append((f"reached {verdicts.describe_goal(quality)}", reached))
    if quality.seconds_to_target is not None:
        facts.append(("time to target, median", format_seconds(quality.seconds_to_target)))
    if repeated.score_seconds is not None:
        facts.append(("olympic mean", format_seconds(repeated.score_seconds)))
    if quality.value is not None:
        best = training.format_metric(quality.metric, quality.value, quality.target)
        of_best = "" if all(run.reached for run in over) else "best "
        facts.append((f"{of_best}{training.name_metric(quality.metric)}, median", best))
    facts.append(("epochs, median", training.format_epoch(quality.epochs)))
    return facts


def describe_measured(child: Result) -> dict[str, Any]:
    measured, used, memory = child.throughput, child.utilisation, child.memory
    if measured is None:
        return {}
    train = child.config.get("train", {})
    batch, accumulate = train.get("batch_size"), train.get("accumulate", 1)
    whole = isinstance(batch, int) and isinstance(accumulate, int)
    return {
        **measured.model_dump(include={"images_per_second", "ci95", "ci_covers", "num_steps"}),
        "images_per_step": batch * accumulate * child.world.ranks if whole else None,
        # Too few to judge is told by the missing interval
        "steady": measured.steady or measured.trend_percent is None,
        "mfu": used.mfu if used else None,
        "limit": used.limit if used else None,
        "memory_bytes": (memory.peak_device_bytes or memory.peak_host_bytes) if memory else None,
        "noise": child.noise.grade if child.noise else "",
    }


def describe_profiled(child: Result, *, cores: bool = False) -> dict[str, Any]:
    """Return what a profile adds to its row; `cores`: core counters were requested, so that their absence is noted."""
    timeline = child.timeline
    message: dict[str, Any] = {} if timeline is None else {"compute_utilisation": timeline.compute_utilisation}
    if timeline is not None and timeline.cores is not None:
        return message | {"cores_percent": timeline.cores.pipes_percent}
    return message | ({"note": "no core counters"} if cores else {})


def list_points(sweep: Sweep) -> list[Point]:
    points = []
    for row in sweep.rows:
        label = label_row(sweep, row)
        points += [Point(label=label, run=row.run)] if row.run else []
        points += [Point(label=f"{label}, profile", run=row.profile_run)] if row.profile_run else []
    return points


def conclude_sweep(sweep: Sweep, children: Sequence[Result], profiles: Sequence[Result] = ()) -> dict[str, Any]:
    sweep = verdicts.assess_sweep(sweep)
    titles = [child.verdict.partition(":")[0] for child in children if child.verdict]
    of_points = [[f for f in child.findings if f.code not in NOT_GATHERED] for child in children]
    of_profiles = [[f for f in one.findings if f.code in OF_A_PROFILE and f.severity != "info"] for one in profiles]
    gathered = [*gather_findings(of_points, "points"), *gather_findings(of_profiles, "profiles")]
    hinted = [found.model_copy(update={"hint": HINTS.get(found.code, found.hint)}) for found in gathered]
    return {
        "sweep": sweep,
        "verdict": verdicts.write_sweep_verdict(sweep, titles[0] if titles else "sweep"),
        "points": list_points(sweep),
        "noise": worst_noise(children),
        "findings": [*find_faults(sweep), *hinted],
    }


def find_faults(sweep: Sweep) -> list[Finding]:
    findings = []
    failed = [row for row in sweep.rows if row.status == "failed"]
    if failed:
        message = "; ".join(f"{label_row(sweep, row)}: {row.note}" for row in failed)
        findings.append(finding("child-failed", f"{len(failed)} of {sweep.num_points} points failed: {message}"))
    full = [row for row in sweep.rows if row.status == "out_of_memory"]
    if full:
        untried = [row for row in sweep.rows if row.status == "not_tried"]
        beyond = f"; not tried, because larger: {verdicts.join_labels(sweep, untried)}" if untried else ""
        why = full[0].note.removeprefix("out of memory: ")
        message = f"out of memory at {verdicts.join_labels(sweep, full)} ({why}){beyond}"
        findings.append(finding("out-of-memory", message, severity="info", hint="a result, too: memory ends the sweep"))
    unprofiled = [row for row in sweep.rows if row.profile == "failed"]
    if unprofiled:
        message = f"no profile of {verdicts.join_labels(sweep, unprofiled)}: {unprofiled[0].note}"
        findings.append(finding("profile-failed", message))
    return findings


def strip_devices(devices: Sequence[Device]) -> list[Device]:
    return [Device(host=device.host, name=device.name, label=device.label, rank=device.rank) for device in devices]
