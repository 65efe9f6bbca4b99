"""Several MLPerf logs as results: grouped by system and benchmark, scored, compared with the reference."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.errors import ConfigError, DataError
from trainstone.results.mlperf.convergence import SOURCE, Assessment, Score, assess_runs, score_runs
from trainstone.results.mlperf.logged import LOG_NAME, LoggedRun
from trainstone.results.tables import Table
from trainstone.text import printable
from trainstone.units import format_rate

RUN_COLUMNS = {"log": False, "minutes": True, "epochs": True, "accuracy": True, "images/s": True, "": False}
TIME_COLUMNS = {
    "seconds": False,
    **dict.fromkeys(("gpus", "batch", "total", "converge", "init", "epoch1", "epoch_avg", "train", "last_eval"), True),
    "epoch: evaluation, accuracy": False,
}
"""The columns of the original SSD's mll-status; of each whether it is flush right."""
SHOWN_EVALUATIONS = 8  # of many the last


@dataclass(frozen=True)
class Group:
    name: str
    runs: tuple[LoggedRun, ...]
    score: Score
    assessment: Assessment | None
    reference_note: str  # why there is no assessment, or what it says


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    places: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        key = (find_place(run.path), run.benchmark, run.org, run.division, run.platform, run.global_batch)
        places.setdefault(key, []).append(run)
    return [make_group(tuple(group)) for group in places.values()]


def make_group(runs: tuple[LoggedRun, ...]) -> Group:
    first = runs[0]
    score = score_runs(first.benchmark, [run.minutes if run.converged else None for run in runs])
    assessment, note = assess_runs(runs)
    if repeated := find_repetition(runs):
        score, assessment, note = Score(None, repeated, score.mean_minutes), None, f"none: {repeated}"
    folder = find_place(first.path)
    # In a submission the folders are results/SYSTEM/BENCHMARK.
    in_results = folder.name == first.benchmark and folder.parent.parent.name == "results"
    name = folder.parent.name if in_results else first.platform or folder.name
    return Group(name, runs, score, assessment, note)


def find_repetition(runs: Sequence[LoggedRun]) -> str | None:
    seen: dict[Any, LoggedRun] = {}
    for run in runs:
        for mark in (replace(run, path=Path()), ("seed", run.seeds) if run.seeds else object()):
            if mark in seen:
                names = " and ".join("/".join(one.path.absolute().parts[-2:]) for one in (seen[mark], run))
                return f"{names} are the same run, or have the same seed"
            seen[mark] = run
    return None


def find_place(log: Path) -> Path:
    """Return the folder of a result_*.txt; a run's own folder holds one log only: that of its neighbours."""
    return log.absolute().parent.parent if log.name == LOG_NAME else log.absolute().parent


def format_title(group: Group) -> str:
    first = group.runs[0]
    batch = f"batch {first.global_batch:,}" if first.global_batch else None
    return " · ".join(filter(None, (group.name, first.benchmark, first.org, first.division, batch)))


def run_table(group: Group) -> Table:
    decimals, rows = count_decimals(group), []
    for at, (run, name) in enumerate(zip(group.runs, name_runs(group.runs), strict=True)):
        notes = (
            {"success": "", None: "not ended"}.get(run.ended, run.ended),
            "left out" if at in group.score.dropped else "",
            "resumed: the pause is counted" if run.resumed else "",
        )
        cells = [
            _format(run.minutes, f".{decimals}f"),
            _format(run.epochs, "g"),
            _format(run.accuracy, ".4f"),
            "–" if run.images_per_second is None else format_rate(run.images_per_second),
        ]
        rows.append([name, *cells, ", ".join(filter(None, notes))])
    return Table(list(RUN_COLUMNS), rows, numeric=list(RUN_COLUMNS.values()))


def time_table(group: Group) -> Table | None:
    """Where the time of each run went; None where no log tells an epoch or evaluation."""
    if not any(run.times.train_seconds is not None or run.times.evaluations for run in group.runs):
        return None
    rows = []
    for run, name in zip(group.runs, name_runs(group.runs), strict=True):
        devices, total, converge, *parts, evaluations = run.times
        # A run that missed its target has its status in place of a time.
        ended = _format(converge, ".1f") if run.converged else run.ended or "not ended"
        last = evaluations[-1].seconds if evaluations else None
        seconds = [_format(value, ".1f") for value in (*parts, last)]
        counts = [_format(devices, "d"), _format(run.global_batch, "d"), _format(total, ".1f")]
        shown = ["…"] * (len(evaluations) > SHOWN_EVALUATIONS)
        for one in evaluations[-SHOWN_EVALUATIONS:]:
            shown.append(f"{_format(one.epoch, 'g')}: {_format(one.seconds, '.1f')} {one.accuracy:.4f}")
        rows.append([name, *counts, ended, *seconds, "; ".join(shown)])
    return Table(list(TIME_COLUMNS), rows, numeric=list(TIME_COLUMNS.values()))


def format_score(group: Group) -> str:
    score, decimals = group.score, count_decimals(group)
    if score.minutes is not None:
        return f"{score.minutes:.{decimals}f} min, {score.note}"
    mean = "" if score.mean_minutes is None else f"; mean to the target {score.mean_minutes:.{decimals}f} min"
    return f"none: {score.note}{mean}"


def name_runs(runs: Sequence[LoggedRun]) -> list[str]:
    """Return names of logs; runs of trainstone all call theirs the same, so their seeds, else their folders."""
    if any(run.path.name != LOG_NAME for run in runs):
        return [run.path.name for run in runs]
    seeds = [run.seeds for run in runs]
    if len(set(seeds)) == len(seeds) and all(len(seed) == 1 for seed in seeds):
        return [f"seed {seed[0]}" for seed in seeds]
    return [run.path.absolute().parent.name for run in runs]


def count_decimals(group: Group) -> int:
    """Return the decimals of all minutes of a group: 39.78; four where all runs are shorter than a minute."""
    return 2 if max(run.minutes or 0.0 for run in group.runs) >= 1 else 4


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def document_group(group: Group) -> dict[str, Any]:
    first, score, assessment = group.runs[0], group.score, group.assessment
    reference: dict[str, Any] | None = None
    if assessment is not None:
        expected = assessment.expected
        reference = {"epochs": assessment.epochs, "passes": assessment.passes, "factor": assessment.factor}
        reference |= {"reference_epochs": expected.mean, "least_epochs": expected.least, "how": expected.how}
        reference |= {"batches": expected.points, "source": SOURCE[first.benchmark or ""]}
    runs = []
    for at, run in enumerate(group.runs):
        evaluations = [_drop_absent(one._asdict()) for one in run.times.evaluations]
        best = max((one.accuracy for one in run.times.evaluations), default=None)
        told = {
            "path": str(run.path),
            "log_form": run.form,
            **{name: getattr(run, name) for name in ("ended", "minutes", "epochs", "accuracy")},
            "best_accuracy": None if best == run.accuracy else best,
            **{name: getattr(run, name) for name in ("images_per_second", "seeds")},
            "resumed": run.resumed or None,
            "dropped": at in score.dropped,
            "times": _drop_absent(run.times._asdict() | {"evaluations": evaluations}),
        }
        runs.append(_drop_absent(told))
    document = {
        "system": group.name,
        **{name: getattr(first, name) for name in ("benchmark", "division", "org", "platform")},
        "global_batch_size": first.global_batch,
        "score_minutes": score.minutes,
        "score_note": score.note,
        "mean_minutes": score.mean_minutes,
        "reference": reference,
        "reference_note": group.reference_note,
        "runs": runs,
    }
    return _drop_absent(document)


def _drop_absent(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


Rulesets = Mapping[str, Collection[str]]  # of each ruleset the benchmarks it has rules for
OLD_FORM = "0.6.0"  # the one ruleset that reads :::MLL lines, and reads no others


class Choice(NamedTuple):
    ruleset: str
    reason: str


CHOSEN = {
    "resnet": Choice("4.0.0", "the last with ResNet"),
    "ssd": Choice("1.0.0", "the last for SSD300 without a list of weights; from 2.0.0 on ssd is RetinaNet"),
}


def choose_ruleset(run: LoggedRun, known: Rulesets, requested: str | None = None) -> Choice:
    name = printable(str(run.path))
    rulesets = sorted(known, key=lambda name: [int(part) for part in name.split(".") if part.isdecimal()])
    if run.form == "0.5":
        raise DataError(
            f"{name}: a log of MLPerf 0.5 (:::MLPv0.5.0), which no ruleset of mlperf-logging reads",
            hint=f"trainstone mlperf summary reads it; the oldest ruleset is {OLD_FORM}",
        )
    having = [ruleset for ruleset in rulesets if run.benchmark in known[ruleset]]
    if not having:
        raise DataError(
            f"{name}: no ruleset has rules for benchmark {printable(str(run.benchmark))}",
            hint="submission_benchmark is resnet or ssd in logs of trainstone",
        )
    usual = CHOSEN.get(run.benchmark or "", Choice(having[-1], f"the last with rules for {run.benchmark}"))
    if requested is None:
        return Choice(OLD_FORM, "the log is of MLPerf 0.6 (:::MLL)") if run.form == "0.6" else usual
    if requested not in known:
        raise ConfigError(f"unknown --ruleset {requested}", hint=f"one of {', '.join(rulesets)}")
    if (requested == OLD_FORM) != (run.form == "0.6"):
        wanted = OLD_FORM if run.form == "0.6" else "0.7.0 or later"
        raise DataError(
            f"{name}: ruleset {requested} does not read lines of MLPerf {run.form}", hint=f"--ruleset {wanted}, or none"
        )
    if requested not in having:
        raise ConfigError(
            f"--ruleset {requested} has no {run.benchmark}: rules are in {', '.join(having)}",
            hint=f"--ruleset {usual.ruleset}",
        )
    return Choice(requested, "requested")
