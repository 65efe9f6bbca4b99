"""Several MLPerf logs as results: grouped by system and benchmark, scored, held against the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainstone.errors import DataError
from trainstone.results.mlperf.convergence import SOURCE, Judgement, judge, why_none
from trainstone.results.mlperf.find import LOG_NAME
from trainstone.results.mlperf.logged import LoggedRun, read_logged
from trainstone.results.mlperf.score import NUM_RUNS, Score, score_runs
from trainstone.results.mlperf.times import document_times
from trainstone.units import format_count


@dataclass(frozen=True)
class Group:
    """Runs of the same thing on the same system."""

    name: str
    runs: tuple[LoggedRun, ...]
    score: Score
    judgement: Judgement | None
    reference_note: str
    """Why there is no judgement, or what it says."""


def read_logs(paths: Sequence[Path]) -> tuple[list[LoggedRun], list[DataError]]:
    """Read all that can be read; the errors of the others."""
    runs, errors = [], []
    for path in paths:
        try:
            runs.append(read_logged(path))
        except DataError as err:
            errors.append(err)
    return runs, errors


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    """Put together what lies in one folder and is of one benchmark, submitter, division, platform and batch."""
    places: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        key = (find_place(run.path), run.benchmark, run.org, run.division, run.platform, run.global_batch)
        places.setdefault(key, []).append(run)
    return [make_group(tuple(group)) for group in places.values()]


def make_group(runs: tuple[LoggedRun, ...]) -> Group:
    """Score runs of the same thing."""
    first = runs[0]
    score = score_runs(first.benchmark, [run.minutes if run.converged else None for run in runs])
    judgement, note = judge_runs(runs)
    repeated = find_repetition(runs)
    if repeated is not None:
        score = Score(None, f"no score: {repeated}", score.mean_minutes)
        judgement, note = None, f"none: {repeated}"
    return Group(name_group(first), runs, score, judgement, note)


def find_repetition(runs: Sequence[LoggedRun]) -> str | None:
    """Say which logs are copies of one run, or of one seed; None where every run is one of its own."""
    same = find_pair(runs, lambda run: replace(run, path=Path()))
    if same is not None:
        return f"{name_pair(*same)} are the same run: they say the same, to the millisecond"
    same = find_pair(runs, lambda run: run.seeds or None)
    if same is None:
        return None
    seeds = ", ".join(map(str, same[0].seeds[:5]))
    return f"{name_pair(*same)} have the same seed {seeds}: every run needs its own"


def find_pair(runs: Sequence[LoggedRun], key: Callable[[LoggedRun], Any]) -> tuple[LoggedRun, LoggedRun] | None:
    """Return the first two runs of the same key; runs without one are alone."""
    seen: dict[Any, LoggedRun] = {}
    for run in runs:
        mark = key(run)
        if mark in seen:
            return seen[mark], run
        if mark is not None:
            seen[mark] = run
    return None


def name_pair(one: LoggedRun, other: LoggedRun) -> str:
    """Return the names of two logs, as short as tells them apart."""
    if one.path.name != other.path.name:
        return f"{one.path.name} and {other.path.name}"
    return " and ".join("/".join(run.path.absolute().parts[-2:]) for run in (one, other))


def find_place(log: Path) -> Path:
    """Return the folder of a result_*.txt; a run's own folder holds one log only: that of its neighbours."""
    return log.absolute().parent.parent if log.name == LOG_NAME else log.absolute().parent


def name_group(run: LoggedRun) -> str:
    """Return the system's name: the folder's in a submission (results/SYSTEM/BENCHMARK), else the platform's."""
    folder = find_place(run.path)
    if folder.name == run.benchmark and folder.parent.parent.name == "results":
        return folder.parent.name
    return run.platform or folder.name


def judge_runs(runs: Sequence[LoggedRun]) -> tuple[Judgement | None, str]:
    """Hold the epochs of runs of the same thing against the reference; or why not."""
    first, reason = runs[0], find_reason(runs)
    if reason is not None or first.benchmark is None or first.global_batch is None:
        return None, reason or ""
    judgement = judge(first.benchmark, first.global_batch, [run.epochs if run.converged else None for run in runs])
    if judgement is None:
        return None, f"{sum(run.converged for run in runs)} of {format_count(len(runs), 'run')} reached the target"
    return judgement, tell_judgement(judgement, len(runs), NUM_RUNS[first.benchmark])


def find_reason(runs: Sequence[LoggedRun]) -> str | None:
    """Say why the reference is no measure for these runs; None where it is."""
    first = runs[0]
    reached = [run.accuracy for run in runs if run.converged and run.accuracy is not None]
    return why_none(
        first.benchmark, first.optimizer, first.global_batch, first.train_samples, min(reached) if reached else None
    )


def tell_judgement(judgement: Judgement, num_runs: int, needed: int) -> str:
    """Say how the epochs compare with the reference, as MLPerf judges it."""
    expected = judgement.expected
    told = (
        f"{judgement.epochs:.1f} epochs to the target; the reference needs {expected.mean:.1f} {tell_source(judgement)}"
    )
    if judgement.epochs >= expected.mean:
        told += ": not fewer, which passes"
    elif judgement.passes:
        told += (
            f": faster, but not below its least of {expected.least:.1f}, which passes; "
            f"MLPerf multiplies the time by {judgement.factor:.4f}"
        )
    else:
        told += f": faster than its least of {expected.least:.1f}, which MLPerf refuses"
    return told if num_runs == needed else f"{told} (judged for {needed} runs, not {num_runs})"


def tell_source(judgement: Judgement) -> str:
    """Say where the reference's number is from."""
    how, points = judgement.expected.how, judgement.expected.points
    if how == "recorded":
        return f"at this batch of {points[0]:,}"
    if how == "smallest":
        return f"at {points[0]:,}, its smallest batch"
    return f"(between batches {points[0]:,} and {points[1]:,})"


def document_group(group: Group) -> dict[str, Any]:
    """Return a group as JSON; absent is what the logs do not say."""
    first, score = group.runs[0], group.score
    document = {
        "system": group.name,
        "benchmark": first.benchmark,
        "division": first.division,
        "org": first.org,
        "platform": first.platform,
        "global_batch_size": first.global_batch,
        "score_minutes": score.minutes,
        "score_note": score.note,
        "mean_minutes": score.mean_minutes,
        "reference": _document_judgement(group.judgement, first.benchmark or ""),
        "reference_note": group.reference_note,
        "runs": [_document_run(run, at in score.dropped) for at, run in enumerate(group.runs)],
    }
    return {key: value for key, value in document.items() if value is not None}


def _document_judgement(judgement: Judgement | None, benchmark: str) -> dict[str, Any] | None:
    if judgement is None:
        return None
    expected = judgement.expected
    return {
        "epochs": judgement.epochs,
        "passes": judgement.passes,
        "factor": judgement.factor,
        "reference_epochs": expected.mean,
        "least_epochs": expected.least,
        "how": expected.how,
        "batches": list(expected.points),
        "source": SOURCE[benchmark],
    }


def _document_run(run: LoggedRun, dropped: bool) -> dict[str, Any]:
    document = {
        "path": str(run.path),
        "log_form": run.form,
        "ended": run.ended,
        "minutes": run.minutes,
        "epochs": run.epochs,
        "accuracy": run.accuracy,
        "best_accuracy": None if run.best_accuracy == run.accuracy else run.best_accuracy,
        "images_per_second": run.images_per_second,
        "seeds": list(run.seeds),
        "resumed": run.resumed or None,
        "dropped": dropped,
        "times": document_times(run.times),
    }
    return {key: value for key, value in document.items() if value is not None}
