"""Compares runs with runs or with published figures: rows with ratio and interval, judged together, and a verdict.

Finding runs and telling them apart is in sides.py, the statistics in ratio.py, the figures in anchors.py.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import ResultError
from trainstone.results import anchors, ratio, sides
from trainstone.results.anchors import LONGEST, Anchor, describe_share, is_published
from trainstone.results.schema import Comparison, ComparisonRow, Result, Side
from trainstone.results.sides import Difference, LeftOut, Run
from trainstone.results.verdicts import write_comparison_verdict
from trainstone.text import printable
from trainstone.units import format_count, format_interval, format_ratio

Group = list[Run]
# The first of these that differs names the sides; what else differs is listed.
NAMING_KEYS = ("device", "host", "engine.threads")


class Compared(NamedTuple):
    """A comparison, and which of its left out a gate must not pass over."""

    comparison: Comparison
    lost: list[str]
    """Runs of A without a number, and what is only in B."""


def compare(runs: Sequence[str], to: Sequence[str], *, force: bool = False) -> Compared:
    """Compare what is in `runs` (A) with what is in `to` (B): paths, or names of published figures in `to`."""
    _check_words(runs, to)
    a, left_out = sides.find_runs(Path(word) for word in runs)
    b, left_out_of_b = sides.find_runs(Path(word) for word in to if not anchors.is_anchor(word))
    left_out += [left._replace(lost=False) for left in left_out_of_b]
    sides.refuse_shared(a, b)
    groups = sides.group_runs(a)
    rows: list[ComparisonRow] = []
    if b:
        pairs, unpaired = pair_groups(groups, sides.group_runs(b), force=force)
        left_out += unpaired
        labels = zip(name_rows(pairs), pairs, strict=True)
        rows = judge_rows([compare_pair(label, *pair, force=force) for label, pair in labels])
    mean = ratio.geometric_mean(row.ratio for row in rows) if len(rows) > 1 else None
    words = [word for word in to if anchors.is_anchor(word)]
    rows += compare_published(groups, words, left_out) if words else []
    verdict, told = write_comparison_verdict(rows, mean), [left.told for left in left_out]
    comparison = Comparison(rows=rows, geometric_mean=mean, verdict=verdict, left_out=told)
    return Compared(comparison, [left.told for left in left_out if left.lost])


def pair_groups(
    a: Sequence[Group], b: Sequence[Group], *, force: bool
) -> tuple[list[tuple[Group, Group]], list[LeftOut]]:
    """Pair groups that executed the same; return them and what has no partner. Unlike ones are refused, or forced."""
    of_b = {_key(group): group for group in b}
    pairs = [(group, of_b[_key(group)]) for group in a if _key(group) in of_b]
    if not pairs:
        pairs = [(group, _nearest(group, b)) for group in a]
        if not force:
            pairs = [min(pairs, key=lambda pair: len(_unlike(*pair)))]
    if not force:
        refuse_unlike(pairs, several=len(a) + len(b) > 2)
    paired = [id(group) for pair in pairs for group in pair]
    left_out = [
        LeftOut(f"{_tell(group)}: only in {side}, {format_count(len(group), 'run')}", lost=side == "B")
        for side, groups in (("A", a), ("B", b))
        for group in groups
        if id(group) not in paired
    ]
    return pairs, left_out


def refuse_unlike(pairs: Sequence[tuple[Group, Group]], *, several: bool) -> None:
    """Raise an error that lists every difference which forbids comparing."""
    found = dict.fromkeys(difference for pair in pairs for difference in _unlike(*pair))
    if not found:
        return
    nearest = "; of the nearest" if several and len(pairs) == 1 else ""
    hint = "--force compares anyway"
    if any(difference.key == "train.batch_size" for difference in found):
        hint += "; or give both the same batch: --set train.batch_size=N"
    listed = "\n".join(str(difference) for difference in found)
    raise ResultError(f"the runs are unlike, so a ratio would not tell why{nearest} (A | B):\n{listed}", hint=hint)


def compare_pair(label: str, a: Group, b: Group, *, force: bool) -> ComparisonRow:
    """Make a row, judged later with the others; runs that never became steady get no interval, unless forced."""
    estimate = ratio.estimate_ratio([run.throughput for run in a], [run.throughput for run in b])
    unsteady = None if force else sides.tell_unsteady(a, b)
    if unsteady:
        estimate = replace(estimate, ci95=None, p_value=None, ci_covers=f"not established: {unsteady}")
    differences = sides.find_differences(a, b)
    name_a, name_b = name_sides(a, b, differences)
    return ComparisonRow(
        label=label,
        a=_make_side(name_a, a),
        b=_make_side(name_b, b),
        ratio=estimate.ratio,
        ci95=estimate.ci95,
        ci_covers=printable(estimate.ci_covers),
        p_value=estimate.p_value,
        noise_floor=ratio.choose_floor(run.result.noise.grade if run.result.noise else None for run in [*a, *b]),
        judgement="not judged",
        differences=[str(difference) for difference in differences],
    )


def judge_rows(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Correct the p-values for the number of rows, then judge each."""
    judged = []
    for row, p_holm in zip(rows, ratio.correct_holm([row.p_value for row in rows]), strict=True):
        assert row.noise_floor is not None  # compare_pair sets it
        judgement = ratio.judge(row.ratio, row.ci95, p_holm, row.noise_floor)
        judged.append(row.model_copy(update={"p_holm": p_holm, "judgement": judgement}))
    return judged


def compare_published(groups: Sequence[Group], words: Sequence[str], left_out: list[LeftOut]) -> list[ComparisonRow]:
    """Return the rows for the figures that the words name."""
    fitting = [group for group in groups if anchors.anchors_for(group[0].result)] or list(groups[:1])
    unknown = [group for group in groups if group not in fitting]
    left_out += [LeftOut(f"{_tell(group)}: no published figures", lost=False) for group in unknown]
    rows = []
    for group in fitting:
        chosen = {anchor.id: anchor for word in words for anchor in anchors.choose_anchors(word, group[0].result)}
        for anchor in chosen.values():
            label = f"{_tell(group)}, {anchor.id}" if len(fitting) > 1 else anchor.id
            rows.append(compare_anchor(label, group, anchor))
    return rows


def compare_anchor(label: str, group: Group, anchor: Anchor) -> ComparisonRow:
    """Hold runs against a published figure, device by device; never judged, because nobody knows its spread."""
    first, ranks = group[0].result, max(1, group[0].result.world.ranks)
    estimate = ratio.estimate_share([run.throughput for run in group], anchor.per_device, per=ranks)
    side = _make_side(_name_device(first), group)
    covers = "the steady window | the whole run, evaluation included" if anchor.whole_run else None
    differing = {
        "precision": f"{_read(first, 'train', 'precision')} | {anchor.precision}" if anchor.precision else None,
        "batch a device": f"{_read(first, 'train', 'batch_size')} | {anchor.batch}" if anchor.batch else None,
        "devices": f"{ranks} | {anchor.devices}" if ranks != anchor.devices else None,
        "software": f"trainstone, torch {first.software.get('torch', 'unknown')} | {anchor.stack}",
        "counted": covers,
        "the figure": anchor.note,
        **{key: f"{told} | unknown" for key, told in sides.find_doubts(group).items()},
    }
    return ComparisonRow(
        label=label,
        a=side.model_copy(update={"images_per_second": side.images_per_second / ranks}),
        b=Side(
            label=" ".join(part for part in (anchor.kind, anchor.precision) if part),
            images_per_second=anchor.per_device,
            source=f"{anchor.stack}; {anchor.source}",
        ),
        ratio=estimate.ratio,
        ci95=estimate.ci95,
        ci_covers=printable(estimate.ci_covers),
        judgement="not judged",
        differences=[printable(f"{key}: {told}") for key, told in differing.items() if told],
    )


def name_rows(pairs: Sequence[tuple[Group, Group]]) -> list[str]:
    """Name what each pair ran; where two names are the same, with the executed keys in which the pairs differ."""
    labels = [
        " · ".join(x if x == y else f"{x or '–'} | {y or '–'}" for x, y in zip_longest(*map(_describe, pair)))
        for pair in pairs
    ]
    if len(set(labels)) == len(labels):
        return labels
    executed = [sides.read_executed(pair[0][0].result) for pair in pairs]
    keys = dict.fromkeys(key for facts in executed for key in facts)
    differing = [key for key in keys if len({facts.get(key) for facts in executed}) > 1]
    named = [", ".join(f"{key}={facts.get(key, 'absent')}" for key in differing) for facts in executed]
    return [printable(f"{label} · {told}") for label, told in zip(labels, named, strict=True)]


def name_sides(a: Group, b: Group, differences: Sequence[Difference]) -> tuple[str, str]:
    """Name each side by the first thing that tells them apart: device, host, threads, what is unlike, or the runs."""
    by_key = {difference.key: difference for difference in differences}
    telling = [by_key[key] for key in NAMING_KEYS if key in by_key] + [d for d in differences if d.unlike]
    if telling:
        key, of_a, of_b, _ = telling[0]
        prefix = "" if key in ("device", "host") else f"{key} "
        return printable(f"{prefix}{of_a}"), printable(f"{prefix}{of_b}")
    return _name_runs(a), _name_runs(b)


def _check_words(runs: Sequence[str], to: Sequence[str]) -> None:
    for word in runs:
        if not os.path.exists(word):  # noqa: PTH110 (False for a name that is too long)
            hint = "give a run folder, its result.json or a folder of runs; published figures follow --to"
            raise ResultError(f"there is no run {word[:LONGEST]}", hint=hint)
    for word in to:
        if not anchors.is_anchor(word) and not os.path.exists(word):  # noqa: PTH110
            raise anchors.refuse_name(word)


def _key(group: Group) -> tuple[tuple[str, str], ...]:
    return tuple(sides.read_executed(group[0].result).items())


def _unlike(a: Group, b: Group) -> list[Difference]:
    return [difference for difference in sides.find_differences(a, b) if difference.unlike]


def _nearest(group: Group, others: Sequence[Group]) -> Group:
    return min(others, key=lambda other: len(_unlike(group, other)))


def _make_side(label: str, group: Group) -> Side:
    mean = ratio.geometric_mean(run.throughput.images_per_second for run in group)
    return Side(label=label, runs=[str(run.folder) for run in group], images_per_second=mean)


def _tell(group: Group) -> str:
    return " · ".join(_describe(group))


def _describe(group: Group) -> list[str]:
    result = group[0].result
    parts = [f"{result.recipe.name} v{result.recipe.version}", _read(result, "train", "precision")]
    parts.append(f"batch {_read(result, 'train', 'batch_size')}")
    parts += [f"{result.world.ranks} ranks"] if result.world.ranks > 1 else []
    parts += [f"{result.world.nodes} nodes"] if result.world.nodes > 1 else []
    return [printable(part) for part in parts]


def _name_device(result: Result) -> str:
    return printable(result.devices[0].name if result.devices else result.process.host)


def _name_runs(group: Group) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return printable(f"{group[0].result.run_id}{more}")


def _read(result: Result, section: str, key: str) -> str:
    values = result.config.get(section)
    return str(values.get(key, "unknown")) if isinstance(values, dict) else "unknown"


class Gate(NamedTuple):
    """A sentence for each."""

    failed: list[str]
    """What says no: rows below the limit, and what is gone."""
    doubtful: list[str]
    """Rows below the limit that pass."""


def check_gate(comparison: Comparison, limit: float, lost: Iterable[str] = ()) -> Gate:
    """Judge each row whose ratio is below the limit, and what is lost: a run of A without a number, or only in B.

    A row fails if it is judged slower or, for a limit above 1, if its whole interval lies below the limit. It also
    fails where nothing can be shown: without an interval, or against a published figure, which has none.
    """
    gate = Gate([f"{told}; the gate cannot pass without it" for told in lost], [])
    for row in comparison.rows:
        if row.ratio < limit:
            (gate.failed if _says_no(row, limit) else gate.doubtful).append(_describe_low(row, limit))
    return gate


def _says_no(row: ComparisonRow, limit: float) -> bool:
    if row.ci95 is None or is_published(row) or row.judgement == "slower":
        return True
    return limit > 1 and row.ci95[1] < limit


def _describe_low(row: ComparisonRow, limit: float) -> str:
    below = f"is below {format_ratio(limit)}"
    if is_published(row):
        return f"{row.label}: {describe_share(row)} {below}"
    interval = format_interval(row.ci95, format_ratio) if row.ci95 else f"interval {row.ci_covers}"
    return f"{row.label}: {format_ratio(row.ratio)} ({interval}) {below}, {row.judgement}"
