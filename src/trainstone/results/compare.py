"""Compare runs with runs or with published figures: rows with ratio and interval, and a verdict over all rows.

Settings and software must agree, so that a ratio shows the effect of the machine; machines may differ.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.config.load import HASHED_SECTIONS, did_you_mean, flatten
from trainstone.errors import ResultError
from trainstone.results import published
from trainstone.results.published import PublishedFigure, describe_share, is_published
from trainstone.results.run_folder import find_runs as find_folders
from trainstone.results.run_folder import read_result
from trainstone.results.schema.run import Comparison, ComparisonRow, Result, Side, Throughput
from trainstone.results.verdicts import format_comparison_verdict
from trainstone.stats import ratio
from trainstone.text import printable
from trainstone.units import format_count, format_interval, format_ratio

# The first of these keys that differs names the sides; the others are listed.
NAMING_KEYS = ("device", "host", "engine.threads")
MAX_SHOWN = 200  # characters of an unknown argument in a message
ABSENT = "absent"
# Settings that follow from the machine, so they may differ.
MACHINE_KEYS = frozenset({"engine.threads", "loader.threads", "data.root"})
ON_BOTH = " on both sides"
# Listed even where both sides have the same value, since it makes the number unreliable.
WARNED_VALUES = {"steady": {"no"}, "status": {"running", "interrupted", "failed", "killed"}}
NEVER_STEADY = "never became steady"
NOT_COMPARABLE = {"profile": "a profile is not comparable", "sweep": "the points of a sweep have different settings"}
# A rate outside is damaged data; within, no logarithm or ratio overflows.
PLAUSIBLE_RATES = (1e-9, 1e12)


@dataclass(frozen=True)
class Run:
    folder: Path
    result: Result
    throughput: Throughput

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.result.run_id, self.result.process.host, self.result.process.started_utc


class SkippedRun(NamedTuple):
    message: str
    lost: bool  # whether something that should have a number has none, which fails a gate


class Difference(NamedTuple):
    key: str
    a: str
    b: str
    unlike: bool  # whether comparing needs --force

    def __str__(self) -> str:
        values = f"{self.a}{ON_BOTH}" if self.a == self.b else f"{self.a} | {self.b}"
        return printable(f"{self.key}: {values}")


Group = list[Run]  # runs with the same settings
Groups = dict[tuple[tuple[str, str], ...], Group]


def compare(runs: Sequence[str], to: Sequence[str], *, force: bool = False) -> tuple[Comparison, list[str]]:
    """Compare the runs in `runs` (A) with those in `to` (B): paths, or in `to` ids of published figures.

    Also return messages about what is lost: runs of A without a number, and groups that are only in B.
    """
    _check_words(runs, to)
    a, skipped = find_runs(Path(word) for word in runs)
    b, skipped_of_b = find_runs(Path(word) for word in to if not published.is_figure_id(word))
    skipped += [run._replace(lost=False) for run in skipped_of_b]
    # The noise of a run (or its copy) that is on both sides would cancel: the interval would be too narrow.
    others = {run.identity for run in b}
    if shared := [str(run.folder) for run in a if run.identity in others]:
        message = f"the same run is on both sides: {', '.join(shared)}"
        raise ResultError(message, hint="name each run before or after --to, not both")
    groups = group_runs(a)
    pairs, unpaired = pair_groups(groups, group_runs(b), force=force) if b else ([], [])
    skipped += unpaired
    labels = zip(name_rows(pairs), pairs, strict=True)
    rows = [compare_pair(label, *pair, force=force) for label, pair in labels]
    for index, p_holm in enumerate(ratio.correct_holm([row.p_value for row in rows])):
        row = rows[index]
        assert row.noise_floor is not None  # compare_pair sets it
        outcome = ratio.assess_ratio(row.ratio, row.ci95, p_holm, row.noise_floor)
        rows[index] = row.model_copy(update={"p_holm": p_holm, "outcome": outcome})
    mean = ratio.geometric_mean(row.ratio for row in rows) if len(rows) > 1 else None
    words = [word for word in to if published.is_figure_id(word)]
    rows += compare_published(list(groups.values()), words, skipped) if words else []
    messages = [run.message for run in skipped]
    verdict = format_comparison_verdict(rows, mean)
    comparison = Comparison(rows=rows, geometric_mean=mean, verdict=verdict, skipped=messages)
    return comparison, [run.message for run in skipped if run.lost]


def pair_groups(a: Groups, b: Groups, *, force: bool) -> tuple[list[tuple[Group, Group]], list[SkippedRun]]:
    """Pair groups with the same settings; return the pairs and the groups without one. `force` pairs unlike groups."""
    pairs = [(group, b[key]) for key, group in a.items() if key in b]
    if not pairs:
        every = ([(group, other) for other in b.values()] for group in a.values())
        pairs = [min(choices, key=lambda pair: len(_unlike(*pair))) for choices in every]
        if not force:
            pairs = [min(pairs, key=lambda pair: len(_unlike(*pair)))]
    unlike = {} if force else dict.fromkeys(difference for pair in pairs for difference in _unlike(*pair))
    if unlike:
        nearest = "; closest pair" if len(a) + len(b) > 2 and len(pairs) == 1 else ""
        hint = "compare anyway: --force"
        if any(difference.key == "train.batch_size" for difference in unlike):
            hint += "; or measure both with the same batch: --set train.batch_size=N"
        listed = "\n".join(str(difference) for difference in unlike)
        raise ResultError(f"runs with different settings or software{nearest} (A | B):\n{listed}", hint=hint)
    paired = [id(group) for pair in pairs for group in pair]
    skipped = [
        SkippedRun(f"{_join(group)}: only in {side}, {format_count(len(group), 'run')}", lost=side == "B")
        for side, groups in (("A", a), ("B", b))
        for group in groups.values()
        if id(group) not in paired
    ]
    return pairs, skipped


def compare_pair(label: str, a: Group, b: Group, *, force: bool) -> ComparisonRow:
    """Build a row without its outcome; runs that never became steady get no interval, unless forced.

    The first difference names the sides: device, host, threads, what is unlike, or the run ids.
    """
    estimate = ratio.estimate_ratio([run.throughput for run in a], [run.throughput for run in b])
    unsteady = None if force else describe_unsteady(a, b)
    if unsteady:
        estimate = replace(estimate, ci95=None, p_value=None, ci_covers=f"not established: {unsteady}")
    differences = find_differences(a, b)
    by_key = {difference.key: difference for difference in differences}
    naming = [by_key[key] for key in NAMING_KEYS if key in by_key] + [d for d in differences if d.unlike]
    if naming:
        key, *values, _ = naming[0]
        names = values if key in ("device", "host") else [f"{key} {value}" for value in values]
    else:
        more = [f" and {len(group) - 1} more" if len(group) > 1 else "" for group in (a, b)]
        names = [f"{group[0].result.run_id}{others}" for group, others in zip((a, b), more, strict=True)]
    return ComparisonRow(
        label=label,
        a=_make_side(printable(names[0]), a),
        b=_make_side(printable(names[1]), b),
        **asdict(estimate),
        noise_floor=max(ratio.NOISE_FLOORS[run.result.noise.grade if run.result.noise else None] for run in (*a, *b)),
        outcome="not assessed",
        differences=[str(difference) for difference in differences],
    )


def compare_published(groups: Sequence[Group], words: Sequence[str], skipped: list[SkippedRun]) -> list[ComparisonRow]:
    fitting = [group for group in groups if published.find_figures(group[0].result)] or list(groups[:1])
    unknown = [group for group in groups if group not in fitting]
    skipped += [SkippedRun(f"{_join(group)}: no published figures", lost=False) for group in unknown]
    rows = []
    for group in fitting:
        chosen = {figure.id: figure for word in words for figure in published.choose_figures(word, group[0].result)}
        for figure in chosen.values():
            label = f"{_join(group)}, {figure.id}" if len(fitting) > 1 else figure.id
            rows.append(compare_figure(label, group, figure))
    return rows


def compare_figure(label: str, group: Group, figure: PublishedFigure) -> ComparisonRow:
    """Compare runs with a published figure, per device; without an outcome, since the figure's spread is unknown."""
    first, ranks = group[0].result, max(1, group[0].result.world.ranks)
    estimate = ratio.estimate_share([run.throughput for run in group], figure.per_device, per=ranks)
    device = printable(first.devices[0].name if first.devices else first.process.host)
    side = _make_side(device, group)
    differing = {
        "precision": f"{_read(first, 'train', 'precision')} | {figure.precision}" if figure.precision else None,
        "batch per device": f"{_read(first, 'train', 'batch_size')} | {figure.batch}" if figure.batch else None,
        "devices": f"{ranks} | {figure.devices}" if ranks != figure.devices else None,
        "software": f"trainstone, torch {first.software.get('torch', 'unknown')} | {figure.stack}",
        "counted": "the steady window | the whole run, evaluation included" if figure.whole_run else None,
        "the figure": figure.note,
        **{warning.key: f"{warning.a} | unknown" for warning in _differ(group, group, read_state, unlike=False)},
    }
    return ComparisonRow(
        label=label,
        a=side.model_copy(update={"images_per_second": side.images_per_second / ranks}),
        b=Side(
            label=" ".join(part for part in (figure.kind, figure.precision) if part),
            images_per_second=figure.per_device,
            source=f"{figure.stack}; {figure.source}",
        ),
        **asdict(estimate),
        outcome="not assessed",
        differences=[printable(f"{key}: {values}") for key, values in differing.items() if values],
    )


def name_rows(pairs: Sequence[tuple[Group, Group]]) -> list[str]:
    """Name what each pair ran; where names are equal, add the settings in which the pairs differ."""
    labels = [
        " · ".join(x if x == y else f"{x or '–'} | {y or '–'}" for x, y in zip_longest(*map(_describe, pair)))
        for pair in pairs
    ]
    if len(set(labels)) == len(labels):
        return labels
    executed = [read_executed(pair[0][0].result) for pair in pairs]
    keys = dict.fromkeys(key for facts in executed for key in facts)
    differing = [key for key in keys if len({facts.get(key) for facts in executed}) > 1]
    named = [", ".join(f"{key}={facts.get(key, 'absent')}" for key in differing) for facts in executed]
    return [printable(f"{label} · {keys}") for label, keys in zip(labels, named, strict=True)]


def _check_words(runs: Sequence[str], to: Sequence[str]) -> None:
    for word in runs:
        if not os.path.exists(word):  # noqa: PTH110 (False for a name that is too long)
            hint = "give a run folder, its result.json or a folder of runs; published figures follow --to"
            raise ResultError(f"no such run: {word[:MAX_SHOWN]}", hint=hint)
    for word in to:
        if not published.is_figure_id(word) and not os.path.exists(word):  # noqa: PTH110
            known = [published.PUBLISHED, *(figure.id for figure in published.load_figures())]
            quoted = repr(printable(word[:MAX_SHOWN]))
            message = f"no such run or published figure: {quoted}{did_you_mean(word, known)}"
            raise ResultError(message, hint=f"give a run folder, or one of: {', '.join(known)}")


def _unlike(a: Group, b: Group) -> list[Difference]:
    return [difference for difference in find_differences(a, b) if difference.unlike]


def _make_side(label: str, group: Group) -> Side:
    mean = ratio.geometric_mean(run.throughput.images_per_second for run in group)
    return Side(label=label, runs=[str(run.folder) for run in group], images_per_second=mean)


def _join(group: Group) -> str:
    return " · ".join(_describe(group))


def _describe(group: Group) -> list[str]:
    result = group[0].result
    parts = [f"{result.recipe.name} v{result.recipe.version}", _read(result, "train", "precision")]
    parts.append(f"batch {_read(result, 'train', 'batch_size')}")
    parts += [f"{result.world.ranks} ranks"] if result.world.ranks > 1 else []
    parts += [f"{result.world.nodes} nodes"] if result.world.nodes > 1 else []
    return [printable(part) for part in parts]


def _read(result: Result, section: str, key: str) -> str:
    return str(result.config.get(section, {}).get(key, "unknown"))


def check_gate(comparison: Comparison, limit: float, lost: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Return why the gate fails (rows below the limit, and what is lost: see compare), and the rows below that pass.

    A row below the limit fails if its outcome is slower or, for a limit above 1, if its whole interval is below. It
    also fails without an interval and against a published figure, whose spread is unknown.
    """
    failed, uncertain = [f"{message}; the gate cannot pass without it" for message in lost], list[str]()
    below = f"is below {format_ratio(limit)}"
    for row in comparison.rows:
        if row.ratio < limit:
            shown = row.ci95 is None or is_published(row) or row.outcome == "slower"
            fails = shown or (limit > 1 and row.ci95 is not None and row.ci95[1] < limit)
            interval = format_interval(row.ci95, format_ratio) if row.ci95 else f"interval {row.ci_covers}"
            low = f"{format_ratio(row.ratio)} ({interval}) {below}, {row.outcome}"
            low = f"{describe_share(row)} {below}" if is_published(row) else low
            (failed if fails else uncertain).append(f"{row.label}: {low}")
    return failed, uncertain


def find_runs(paths: Iterable[Path]) -> tuple[list[Run], list[SkippedRun]]:
    """Read the runs in these folders; return each once, and what was skipped."""
    runs: dict[tuple[str, str, str], Run] = {}
    skipped: list[SkippedRun] = []
    for path in paths:
        # os.path: False, not an error, for a name that is too long or a folder without read permission
        if not os.path.isdir(path) or os.path.exists(path / "result.json"):  # noqa: PTH110, PTH112
            found = _read_runs(path, skipped)
        else:
            found = [run for child in find_folders(path) for run in _try_runs(child, skipped)]
        if not found:
            why = "; ".join(run.message for run in skipped) or "no folder in it has a result.json"
            raise ResultError(f"no runs to compare in {path}: {why}", hint="measure one: trainstone bench --out DIR")
        for run in found:
            if run.identity in runs:
                skipped.append(SkippedRun(f"{run.folder}: given twice, counted once", lost=False))
            runs.setdefault(run.identity, run)
    return list(runs.values()), skipped


def group_runs(runs: Sequence[Run]) -> Groups:
    groups: Groups = {}
    for run in runs:
        groups.setdefault(tuple(read_executed(run.result).items()), []).append(run)
    return groups


def find_differences(a: Sequence[Run], b: Sequence[Run]) -> list[Difference]:
    """Return how the runs of two sides differ, first the differences that need --force.

    Software must also agree among the runs of one side, since they are pooled.
    """
    found = list(_differ(a, b, read_executed, unlike=True))
    for difference in _differ(a, b, read_software, unlike=True, within=True):
        # A machine without CUDA has no CUDA version: a difference of machines, not of software.
        optional = difference.key not in ("trainstone", "torch", "source")
        absent = optional and ABSENT in (difference.a, difference.b)
        found.append(difference._replace(unlike=not absent))
    found += _differ(a, b, read_surroundings, unlike=False)
    found += _differ(a, b, read_state, unlike=False)
    return sorted(found, key=lambda difference: not difference.unlike)


def describe_unsteady(a: Sequence[Run], b: Sequence[Run]) -> str | None:
    """Name the sides of which half of the runs or more never became steady: their speed may keep changing.

    Fewer are covered by the spread between runs: 2 to 3 % of noisy runs look like drifting (stats/steady_state.py).
    """
    sides = []
    for name, runs in (("A", a), ("B", b)):
        drifting = sum(read_state(run.result).get("steady") == "no" for run in runs)
        sides += [f"{drifting} of {format_count(len(runs), 'run')} of {name}"] if 2 * drifting >= len(runs) else []
    return f"{' and '.join(sides)} {NEVER_STEADY}" if sides else None


def read_executed(result: Result) -> dict[str, str]:
    facts = {"recipe": result.recipe.name, "recipe.version": str(result.recipe.version)}
    facts |= {"work": "inference" if result.kind == "eval" else "training"}
    for section in HASHED_SECTIONS:
        facts |= _flatten(section, result.config.get(section))
    if result.loader:
        facts |= {"data set": f"{result.loader.images} images, {result.loader.storage}, {result.loader.digest}"}
    facts |= {"world.ranks": str(result.world.ranks), "world.nodes": str(result.world.nodes)}
    return {key: facts[key] for key in sorted(facts) if key not in MACHINE_KEYS}


def read_software(result: Result) -> dict[str, str]:
    """Return the versions that affect speed; CPU and CUDA builds of torch count as one version."""
    software = {key: _text(value) for key, value in result.software.items()}
    torch, _, build = software.get("torch", ABSENT).partition("+")
    versions = {"source": result.source, "trainstone": software.get("trainstone", ABSENT), "torch": torch}
    if build.startswith(("cu", "rocm")):
        versions["torch build"] = build
    versions |= {key: software[key] for key in ("cuda", "cudnn", "nccl", "driver") if key in software}
    drivers = {_text(device["driver"]) for device in _devices(result) if "driver" in device}
    return versions | ({"driver": ", ".join(sorted(drivers))} if drivers else {})


def read_surroundings(result: Result) -> dict[str, str]:
    """Return what else may affect speed: the machine, how busy it was, how the run was measured."""
    facts = {"host": result.process.host, "kind": result.kind}
    if result.devices:
        facts["device"] = result.devices[0].name
    cpu = result.machine.get("cpu")
    known = ("model", "physical_cores", "available", "governor", "boost", "smt") if isinstance(cpu, dict) else ()
    named = {
        "config.device": result.config.get("device"),
        "engine.threads": result.config.get("engine", {}).get("threads"),
        **{f"cpu.{key}": result.machine["cpu"].get(key) for key in known},
        **{key: result.machine.get(key) for key in ("os", "kernel", "memory", "virtualisation")},
        **{key: result.software.get(key) for key in ("python", "numpy", "libc", "environment")},
        "measure": result.config.get("measure"),
    }
    for key, value in named.items():
        facts |= _flatten(key, value)
    for key in ("power_limit_watts", "ecc", "mig"):
        values = {_text(device[key]) for device in _devices(result) if key in device}
        facts |= {f"device.{key}": ", ".join(sorted(values))} if values else {}
    build = _text(result.software.get("torch", "")).partition("+")[2]
    facts |= {"torch build": build} if build and not build.startswith(("cu", "rocm")) else {}
    facts["noise grade"] = result.noise.grade if result.noise else ABSENT
    return facts


def read_state(result: Result) -> dict[str, str]:
    facts, measured = {"status": str(result.status)}, result.throughput
    if measured is not None:
        unsteady = "too few steps" if measured.trend_percent is None else "no"
        facts["steady"] = "yes" if measured.steady else unsteady
    return facts


def _try_runs(path: Path, skipped: list[SkippedRun]) -> list[Run]:
    """Read a run that may be skipped: one of a folder of runs, or of --runs."""
    try:
        return _read_runs(path, skipped)
    except ResultError as err:
        # A profile or a sweep has no throughput to lose
        skipped.append(
            SkippedRun(printable(err.message), lost=not err.message.endswith(tuple(NOT_COMPARABLE.values())))
        )
        return []


def _read_runs(path: Path, skipped: list[SkippedRun]) -> list[Run]:
    result = read_result(path)
    folder = path if path.is_dir() else path.parent
    if result.points and result.kind != "sweep":
        for name in (point.run for point in result.points):
            # Before Python 3.13 Path.resolve raises RuntimeError for circular links; realpath does not.
            if "\0" in name or Path(os.path.realpath(folder)) not in Path(os.path.realpath(folder / name)).parents:
                raise ResultError(f"{folder} is damaged: its point {printable(name)} is outside the folder")
        runs = [run for point in result.points for run in _try_runs(folder / point.run, skipped)]
        if runs:
            return runs
    elif result.throughput is not None and result.kind != "profile":
        rate, ci95 = result.throughput.images_per_second, result.throughput.ci95
        low, high = ci95 or (rate, rate)
        if not (all(PLAUSIBLE_RATES[0] <= n <= PLAUSIBLE_RATES[1] for n in (low, rate, high)) and low <= rate <= high):
            raise ResultError(f"{path} is damaged: its throughput is {rate} images/s, interval {ci95}")
        return [Run(folder, result, result.throughput)]
    message = NOT_COMPARABLE.get(result.kind, f"no throughput; the run has status {result.status}")
    measure = "measure it again: trainstone bench RUN/config.toml"
    points = "compare points: trainstone compare RUN/points/X --to OTHER/points/Y"
    hint = points if result.kind == "sweep" else measure
    raise ResultError(f"{path}: {message}", hint=hint)


def _differ(
    a: Sequence[Run], b: Sequence[Run], read: Callable[[Result], dict[str, str]], *, unlike: bool, within: bool = False
) -> Iterator[Difference]:
    facts = [[read(run.result) for run in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in facts for run in side for key in run)
    for key in keys:
        of_a, of_b = ({run.get(key, ABSENT) for run in side} for side in facts)
        warned = (of_a | of_b) & WARNED_VALUES.get(key, set())
        if of_a != of_b or warned or (within and len(of_a) > 1):
            yield Difference(key, ", ".join(sorted(of_a)), ", ".join(sorted(of_b)), unlike)


def _devices(result: Result) -> list[Mapping[str, Any]]:
    devices = result.machine.get("devices")
    return [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []


def _flatten(key: str, value: Any) -> dict[str, str]:
    return {name: _text(inner) for name, inner in flatten({key: value}) if inner is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
