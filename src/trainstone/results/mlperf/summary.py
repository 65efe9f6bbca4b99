"""Several MLPerf logs as results: grouped by system and benchmark, scored, compared with the reference.

Tables and documents are made here, once; the terminal and --json only print them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainstone.results.mlperf.convergence import SOURCE, Judgement, judge_runs
from trainstone.results.mlperf.logged import LOG_NAME, JudgedAt, LoggedRun, Times
from trainstone.results.mlperf.score import Score, score_runs
from trainstone.text import printable
from trainstone.units import count_decimals, format_rate

RUN_COLUMNS = ("log", "minutes", "epochs", "accuracy", "images/s", "")
TIME_COLUMNS = (
    *("seconds", "gpus", "batch", "total", "converge", "init", "epoch1", "epoch_avg", "train", "last_eval"),
    "epoch: evaluation, accuracy",
)
"""The columns of the original SSD's mll-status."""
SHOWN_EVALUATIONS = 8
"""Of many the last."""


@dataclass(frozen=True)
class Group:
    """Runs of the same thing on the same system."""

    name: str
    runs: tuple[LoggedRun, ...]
    score: Score
    judgement: Judgement | None
    reference_note: str
    """Why there is no judgement, or what it says."""


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    """Put together what is in one folder and of one benchmark, submitter, division, platform and batch."""
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


def format_title(group: Group) -> str:
    """Return the system's name and what it ran."""
    first = group.runs[0]
    batch = f"batch {first.global_batch:,}" if first.global_batch else None
    parts = (group.name, first.benchmark, first.org, first.division, batch)
    return printable(" · ".join(part for part in parts if part))


def list_run_rows(group: Group) -> list[list[str]]:
    """One row per run, in the order of RUN_COLUMNS."""
    decimals, rows = count_minute_decimals(group), []
    for at, (run, name) in enumerate(zip(group.runs, name_runs(group.runs), strict=True)):
        ended = {"success": "", None: "not ended"}.get(run.ended, str(run.ended))
        resumed = "resumed: the pause is counted" if run.resumed else ""
        notes = ", ".join(note for note in (ended, "left out" if at in group.score.dropped else "", resumed) if note)
        rows.append(
            [
                printable(name),
                "–" if run.minutes is None else f"{run.minutes:.{decimals}f}",
                "–" if run.epochs is None else f"{run.epochs:g}",
                "–" if run.accuracy is None else f"{run.accuracy:.4f}",
                "–" if run.images_per_second is None else format_rate(run.images_per_second),
                printable(notes),
            ]
        )
    return rows


def list_time_rows(group: Group) -> list[list[str]]:
    """Where the time of each run went, in the order of TIME_COLUMNS; none where no log tells an epoch or evaluation."""
    if not any(run.times.train is not None or run.times.evaluations for run in group.runs):
        return []
    rows = []
    for run, name in zip(group.runs, name_runs(group.runs), strict=True):
        times = run.times
        last = times.evaluations[-1].seconds if times.evaluations else None
        # A run that missed its target has its status in place of a time.
        converge = _format_seconds(times.converge) if run.converged else printable(run.ended or "not ended")
        rows.append(
            [
                printable(name),
                "–" if times.devices is None else str(times.devices),
                "–" if run.global_batch is None else str(run.global_batch),
                _format_seconds(times.total),
                converge,
                *map(_format_seconds, (times.init, times.first_epoch, times.epoch, times.train, last)),
                _format_evaluations(times.evaluations),
            ]
        )
    return rows


def format_result(group: Group) -> list[str]:
    """Score, or mean and why there is no score; then the reference."""
    score, decimals = group.score, count_minute_decimals(group)
    mean = "" if score.mean_minutes is None else f"; mean to the target {score.mean_minutes:.{decimals}f} min"
    if score.minutes is not None:
        text = f"score      {score.minutes:.{decimals}f} min, {score.note}"
    else:
        text = f"score      none: {score.note.removeprefix('no score: ')}{mean}"
    return [printable(text), printable(f"reference  {group.reference_note}")]


def name_runs(runs: Sequence[LoggedRun]) -> list[str]:
    """Return names of logs; runs of trainstone all call theirs the same, so their seeds, else their folders."""
    if any(run.path.name != LOG_NAME for run in runs):
        return [run.path.name for run in runs]
    seeds = [run.seeds for run in runs]
    if len(set(seeds)) == len(seeds) and all(len(seed) == 1 for seed in seeds):
        return [f"seed {seed[0]}" for seed in seeds]
    return [run.path.absolute().parent.name for run in runs]


def count_minute_decimals(group: Group) -> int:
    """Return the decimals of all minutes of a group: 39.78; where all runs are short, three digits of the longest."""
    longest = max((run.minutes for run in group.runs if run.minutes is not None), default=0.0)
    return 2 if longest >= 1 or longest <= 0 else count_decimals(longest, 3)


def _format_evaluations(evaluations: Sequence[JudgedAt]) -> str:
    """Return 40: 5.2 0.1816; 50: 5.1 0.2302."""
    shown = [
        f"{'–' if one.epoch is None else f'{one.epoch:g}'}: {_format_seconds(one.seconds)} {one.accuracy:.4f}"
        for one in evaluations[-SHOWN_EVALUATIONS:]
    ]
    return "; ".join(["…"] * (len(evaluations) > SHOWN_EVALUATIONS) + shown)


def _format_seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f}"


def document_group(group: Group) -> dict[str, Any]:
    """Return a group as JSON; absent is what the logs do not say."""
    first, score, judgement = group.runs[0], group.score, group.judgement
    reference = judgement and {
        "epochs": judgement.epochs,
        "passes": judgement.passes,
        "factor": judgement.factor,
        "reference_epochs": judgement.expected.mean,
        "least_epochs": judgement.expected.least,
        "how": judgement.expected.how,
        "batches": list(judgement.expected.points),
        "source": SOURCE[first.benchmark or ""],
    }
    return _drop_absent(
        {
            "system": group.name,
            "benchmark": first.benchmark,
            "division": first.division,
            "org": first.org,
            "platform": first.platform,
            "global_batch_size": first.global_batch,
            "score_minutes": score.minutes,
            "score_note": score.note,
            "mean_minutes": score.mean_minutes,
            "reference": reference,
            "reference_note": group.reference_note,
            "runs": [_document_run(run, at in score.dropped) for at, run in enumerate(group.runs)],
        }
    )


def _document_run(run: LoggedRun, dropped: bool) -> dict[str, Any]:
    return _drop_absent(
        {
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
            "times": _document_times(run.times),
        }
    )


def _document_times(times: Times) -> dict[str, Any]:
    return _drop_absent(
        {
            "devices": times.devices,
            "total_seconds": times.total,
            "converge_seconds": times.converge,
            "init_seconds": times.init,
            "first_epoch_seconds": times.first_epoch,
            "mean_epoch_seconds": times.epoch,
            "train_seconds": times.train,
            "evaluations": [_drop_absent(one._asdict()) for one in times.evaluations],
        }
    )


def _drop_absent(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}
