"""Build the tables of a result, for the terminal (cli/render/run.py) and the HTML report (report/).

Cells are formatted text; the renderer escapes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from trainstone import units
from trainstone.results import training
from trainstone.results.compare import ON_BOTH
from trainstone.results.knee import find_knee_row, name_key
from trainstone.results.loader_speed import format_microseconds
from trainstone.results.published import describe_share
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.quality import Evaluation, Quality, Repeated
from trainstone.results.schema.run import ComparisonRow, Result
from trainstone.results.schema.sweep import Sweep, SweepRow, format_setting, is_numeric
from trainstone.results.schema.timeline import PIPES

STATES = {"out_of_memory": "out of memory", "failed": "failed", "not_tried": "not tried"}
MAX_EVALUATIONS = 60
MAX_METRICS = 6
Cell = str | float | None


@dataclass(frozen=True)
class Table:
    """A table; `links` are relative addresses for the first cell of each row, None for no link."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    links: Sequence[str | None] = ()
    sortable: bool = False
    filterable: bool = False  # with a search box that hides other rows; at most one such table per page
    numeric: Sequence[bool] = ()  # columns aligned right
    keys: Sequence[Sequence[float | str]] = ()  # sort keys of the cells, where they are not their text
    kind: str = "table"


def build_filled_table(columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table without empty columns; `columns`: names, and whether each is aligned right."""
    filled = [any(row[index] for row in rows) for index in range(len(columns))]
    names, numeric = list(compress(columns, filled)), list(compress(columns.values(), filled))
    return Table(names, [list(compress(row, filled)) for row in rows], numeric=numeric)


def build_sortable_table(
    columns: Mapping[str, bool], cells: Sequence[Sequence[tuple[str, float | str]]], caption: str = ""
) -> Table:
    """Build a sortable table of cells (text, sort key); `columns`: names, and whether each is aligned right."""
    rows = [[text for text, _ in row] for row in cells]
    keys = [[key for _, key in row] for row in cells]
    return Table(list(columns), rows, caption, sortable=True, numeric=list(columns.values()), keys=keys)


def build_sweep_table(sweep: Sweep, links: Sequence[str | None] = (), *, full: bool = False) -> Table:
    """Build a table with a row per point, without empty columns; `full` adds the order of execution."""
    cells = [describe_point(sweep, row) for row in sweep.rows]
    columns = [name for name in cells[0] if any(line[name][0] for line in cells)]
    keys = [sweep.key] if sweep.curve_key is None else [sweep.key, sweep.curve_key]
    order = ["order"] if full else []
    rows = []
    for row, line in zip(sweep.rows, cells, strict=True):
        own = [row.value, row.curve][: len(keys)] + ([row.order] if full else [])
        texts = [(format_setting(value), value if is_numeric([value]) else format_setting(value)) for value in own]
        rows.append([*texts, *(line[name] for name in columns)])
    heads = dict.fromkeys([*map(name_key, keys), *order], True) | {name: name != "note" for name in columns}
    return replace(build_sortable_table(heads, rows), links=links)


def describe_point(sweep: Sweep, row: SweepRow) -> dict[str, tuple[str, float | str]]:
    cells = {
        "images/s": _cell(row.images_per_second, units.format_rate),
        "±": _cell(row.half_width, units.format_percent),
        "MFU": _cell(row.mfu, units.format_percent),
        "memory": _cell(row.memory_bytes, units.format_bytes),
    }
    if sweep.profile:
        cells["utilisation"] = _cell(row.compute_utilisation, units.format_percent)
        cells |= {name: _cell(row.cores_percent.get(name), "{:.1f} %".format) for name in PIPES}
    if row.status != "ok":
        state = STATES[row.status]
        # The child's message may begin with the same words
        why = row.note.removeprefix(state).lstrip(": ")
        notes = [f"{state}: {why}" if why else state]
    else:
        notes = ["knee"] if is_knee(sweep, row) else []
        notes += ["no interval"] if row.images_per_second is not None and row.ci95 is None else []
        notes += [] if row.steady else ["not steady"]
        notes += ["no profile"] if row.profile == "failed" else [row.note] if row.note else []
    note = "; ".join(notes)
    return cells | {"note": (note, note)}


def _cell(number: float | None, form: Callable[[float], str]) -> tuple[str, float | str]:
    return ("", "") if number is None else (form(number), number)


def is_knee(sweep: Sweep, row: SweepRow) -> bool:
    return any(find_knee_row(sweep, knee) is row for knee in sweep.knees)


def build_comparison_table(rows: Sequence[ComparisonRow], *, full: bool = False) -> Table:
    """Build a table of comparisons of runs with runs.

    `full` adds what the terminal shows in notes: what the interval covers, the noise floor, the sources.
    """
    more = ["interval covers", "noise floor"] if full else []
    cells = []
    for row in rows:
        sides = [f"{side.label}: {units.format_rate(side.images_per_second)} images/s" for side in (row.a, row.b)]
        if full:
            sources = [f", {side.source}" if side.source else "" for side in (row.a, row.b)]
            sides = [side + source for side, source in zip(sides, sources, strict=True)]
        p_value = "" if row.p_holm is None else "< 0.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}"
        added = [row.ci_covers, "" if row.noise_floor is None else units.format_percent(row.noise_floor)]
        cells.append([row.label, *sides, format_row_ratio(row), p_value, *added[: len(more)], row.outcome])
    return build_filled_table(dict.fromkeys(["", "A", "B", "A / B", "p (Holm)", *more, "outcome"], False), cells)


def build_published_table(rows: Sequence[ComparisonRow]) -> Table:
    ranked = sorted(rows, key=lambda row: -row.b.images_per_second)
    rates = [[units.format_rate(side.images_per_second) for side in (row.b, row.a)] for row in ranked]
    cells = [[row.label, *both, describe_share(row)] for row, both in zip(ranked, rates, strict=True)]
    return Table(["images/s per device", "published", "A", "A / published"], cells, numeric=[False, True, True, True])


def list_comparison_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """List what intervals cover, noise floors, sources and differences; notes that not all rows share name theirs."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        floor = [] if row.noise_floor is None else [f"noise floor {units.format_percent(row.noise_floor)}"]
        source = [f"source: {row.b.source}"] if row.b.source else []
        differing = [text if text.endswith(ON_BOTH) else f"differs: {text}" for text in row.differences]
        for note in (f"interval {row.ci_covers}", *floor, *source, *differing):
            notes.setdefault(note, []).append(row.label)
    return [note if len(labels) == len(rows) else f"{', '.join(labels)}: {note}" for note, labels in notes.items()]


def format_row_ratio(row: ComparisonRow) -> str:
    interval = units.format_interval(row.ci95, units.format_ratio) if row.ci95 else "no interval"
    return f"{units.format_ratio(row.ratio)} ({interval})"


def build_thread_table(bench: DataBenchResult) -> Table:
    one = next((point.images_per_second for point in bench.points if point.threads == 1), None)
    rows = [
        [
            f"{point.threads:,}",
            units.format_rate(point.images_per_second),
            units.format_interval(point.ci95) if point.ci95 else "",
            "" if point.cpu_cores is None else f"{point.cpu_cores:.2f}",
            units.format_rate(point.images_per_second_per_core),
            "" if one is None else units.format_percent(point.images_per_second / (one * point.threads), 0),
        ]
        for point in bench.points
    ]
    columns = ("threads", "images/s", "95 % interval", "busy CPUs", "images/s per core", "of linear")
    return build_filled_table(dict.fromkeys(columns, True), rows)


def build_stage_table(bench: DataBenchResult) -> Table:
    rows = [
        [stage.name, format_microseconds(stage.seconds_per_image), units.format_percent(stage.share)]
        for stage in bench.stages
    ]
    total = format_microseconds(sum(stage.seconds_per_image for stage in bench.stages))
    columns = ("stage", "µs per image", "share")
    return Table(columns, [*rows, ["all", total, units.format_percent(1)]], numeric=(False, True, True))


def build_evaluation_table(quality: Quality) -> Table:
    shown = training.thin_history(quality, MAX_EVALUATIONS)
    # The target's metric first, so that it is never among those cut off
    metrics = list(dict.fromkeys([quality.metric, *(name for found in shown for name in found.metrics)]))[:MAX_METRICS]
    best, reached = training.find_best(quality), training.find_reached(quality)
    notes = {quality.history[at].step: note for at, note in ((best, "best"), (reached, "target")) if at is not None}
    if best is not None and best == reached:
        notes[quality.history[best].step] = "best, target"

    def show(found: Evaluation, name: str) -> str:
        target = quality.target if name == quality.metric else None
        return training.format_metric(name, found.metrics[name], target) if name in found.metrics else ""

    rows = [
        [
            training.format_epoch(found.epoch),
            f"{found.step:,}",
            *(show(found, name) for name in metrics),
            units.format_seconds(found.seconds),
            units.format_seconds(found.eval_seconds),
            f"{found.images:,}",
            notes.get(found.step, ""),
        ]
        for found in shown
    ]
    heads = ["epochs", "steps", *map(training.name_metric, metrics), "elapsed", "evaluation", "images", ""]
    hidden = len(quality.history) - len(shown)
    caption = f"{units.format_count(hidden, 'more evaluation')} not shown." if hidden else ""
    return Table(heads, rows, caption=caption, numeric=[True] * (len(heads) - 1) + [False])


def build_training_table(
    repeated: Repeated,
    quality: Quality | None,
    results: Sequence[Result | None] = (),
    links: Sequence[str | None] = (),
    caption: str = "",
) -> Table:
    """Build a table with a row per run of train --runs, linked to its page; unknown cells are empty."""
    rows = []
    for run, result in zip(repeated.runs, results or [None] * len(repeated.runs), strict=True):
        notes = ["dropped"] if repeated.score_seconds is not None and not run.counted else []
        notes += [f"{run.starts} starts"] if run.starts > 1 else []
        value = ""
        if quality and run.value is not None:
            value = training.format_metric(quality.metric, run.value, quality.target)
        cells = [
            "" if run.epochs is None else training.format_epoch(run.epochs),
            "" if run.seconds_to_target is None else units.format_seconds(run.seconds_to_target),
            value,
            units.format_rate(result.throughput.images_per_second) if result and result.throughput else "",
        ]
        rows.append([f"seed {run.seed}", *cells, run.status.replace("_", " "), ", ".join(notes)])
    best = f"{training.name_metric(quality.metric)}, best" if quality else "best"
    numeric = dict.fromkeys(("epochs", "time to target", best, "images/s"), True)
    table = build_filled_table({"run": False, **numeric, "status": False, "": False}, rows)
    return replace(table, caption=caption, links=links)


def build_quality_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Table:
    numeric = [any(is_number(row[index]) for row in rows) for index in range(len(columns))]
    return Table(columns, format_rows(rows), caption=caption, numeric=numeric)


def is_number(cell: Cell) -> bool:
    return isinstance(cell, float | int)


def format_rows(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Format cells as 0.231, as 1,204 in a column of whole numbers, or as text; None is empty."""
    columns = []
    for column in zip(*rows, strict=True):
        whole = all(float(cell).is_integer() for cell in column if isinstance(cell, float | int))
        columns.append([_format_cell(cell, whole) for cell in column])
    return [list(row) for row in zip(*columns, strict=True)]


def _format_cell(cell: Cell, whole: bool) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    if whole:
        return f"{cell:,.0f}" if abs(cell) < 1e15 else f"{cell:.4g}"
    return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:,.4g}"
