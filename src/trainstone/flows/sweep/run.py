"""A sweep: lists from flags become points, each a checked configuration and a child process, in shuffled order.

A point's row is written as soon as it is known. Out of memory is a result. A sweep that is stopped or killed at any
moment can be resumed.
"""

import logging
import random
import shutil
import signal
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainstone.config.load import (
    change_config,
    did_you_mean,
    flatten,
    list_keys,
    load_config,
    parse_setting,
    write_toml,
)
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, LaunchError, ResultError, RunError, error_of_child
from trainstone.files import write_atomically
from trainstone.flows.child_runs import ChildEnd, ChildRun, child_command, run_children
from trainstone.flows.lifecycle import Lifecycle
from trainstone.formats.timehistory import Intervals, choose_every
from trainstone.machine.cpus import count_kills, may_be_memory
from trainstone.machine.facts import read_software
from trainstone.results.combine import conclude_sweep, describe_measured, describe_profiled, strip_devices
from trainstone.results.progress import Progress
from trainstone.results.run_folder import name_run, read_if_there, read_result
from trainstone.results.schema.run import Result, Status
from trainstone.results.schema.sweep import (
    BATCH,
    TAKES_MEMORY,
    Sweep,
    SweepRow,
    has_order,
    label_point,
    label_row,
    name_file,
)
from trainstone.results.steps import read_records

log = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128)  # of the TBD suite's measure_throughput.sh
# What the first child settles for all others, so that they differ in nothing but what is swept or their seed.
SETTLED = ("device", "engine.threads", "loader.threads", "train.precision", BATCH)
LARGEST_BATCH = 10**9
LONGEST_QUOTE = 40
OF_THE_SWEEP = (2, 3, 4)  # exit codes (configuration, data, machine) that other points may end with, too


@dataclass(frozen=True)
class PlannedPoint:
    order: int
    value: Any
    curve: Any
    label: str
    name: str  # of its files


@dataclass(frozen=True)
class Plan:
    """All points, in the order they are run in, and what they have in common."""

    config: Config
    sweep: Sweep
    points: tuple[PlannedPoint, ...]

    @property
    def labels(self) -> list[str]:
        return [label for _, _, label in list_grid(self.sweep)]


def make_plan(
    config: Config,
    batch_sizes: str | None,
    over: str | None,
    *,
    profile: bool = False,
    cores: bool = False,
    strict: bool = False,
) -> Plan:
    """Turn the flags into points; each one's configuration is checked before anything runs."""
    sizes: list[Any] = list(BATCH_SIZES)
    if batch_sizes is not None:
        try:
            sizes = [int(part) for part in batch_sizes.split(",")]
        except ValueError:  # also thousands of digits
            sizes = [0]
        if not all(0 < size < LARGEST_BATCH for size in sizes):
            quoted = f"--batch-sizes {batch_sizes[:LONGEST_QUOTE]}"
            message = f"{quoted}: expected whole numbers above 0 and below {LARGEST_BATCH:,}"
            raise ConfigError(message, hint="for example --batch-sizes 1,2,4,8")
    swept: dict[str, Any] = {"key": BATCH, "values": sizes}
    if over is not None:
        key, values = parse_over(over)
        if batch_sizes is None:
            swept = {"key": key, "values": values}
        elif key == BATCH:
            message = "--batch-sizes and --over train.batch_size are the same key twice"
            raise ConfigError(message, hint="give one of them")
        else:
            swept |= {"curve_key": key, "curves": values}
    asked = Sweep(**swept, seed=config.seed, profile=profile or cores, cores=cores, strict=strict)
    plan = lay_out(config, asked)
    seen: dict[str, str] = {}
    for point in plan.points:
        text = configure(plan.config, asked, point).model_dump_json()
        if text in seen:
            raise ConfigError(f"{seen[text]} and {point.label} are the same point", hint="name each value once")
        seen[text] = point.label
    return plan


def parse_over(text: str) -> tuple[str, list[Any]]:
    """Split KEY=V,V into the key and its values: a TOML array without its brackets, or words between commas."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key or not rest.strip():
        raise ConfigError(
            f"--over {text[:LONGEST_QUOTE]}: it is not KEY=VALUE,VALUE",
            hint="for example --over train.precision=fp32,bf16",
        )
    known = [row[0] for row in list_keys()]
    if key not in known:
        inside = ", ".join(name for name in known if name.startswith(f"{key}."))
        told = f"it is a section; sweep one of its keys ({inside})" if inside else "unknown key"
        raise ConfigError(
            f"--over {key}: {told}{'' if inside else did_you_mean(key, known)}",
            hint="`trainstone recipes NAME` lists the keys of a recipe",
        )
    try:
        values: list[Any] = parse_setting(f"{key}=[{rest}]")[1]
    except ConfigError:
        values = [parse_setting(f"{key}={part}")[1] for part in rest.split(",")]
    return key, values


def list_grid(sweep: Sweep) -> list[tuple[Any, Any, str]]:
    """Return value, curve and label of all points, by curve and value, in the order they were given."""
    grid = [(value, curve) for curve in (sweep.curves if sweep.curve_key else [None]) for value in sweep.values]
    return [(value, curve, label_point(sweep.key, value, sweep.curve_key, curve)) for value, curve in grid]


def lay_out(config: Config, sweep: Sweep) -> Plan:
    """Shuffle the points, always in the same way for the same seed."""
    grid = list_grid(sweep)
    order = list(range(len(grid)))
    random.Random(sweep.seed).shuffle(order)
    names = name_all([label for _, _, label in grid])
    points = [PlannedPoint(number, *grid[place], name=names[place]) for number, place in enumerate(order, start=1)]
    return Plan(config, sweep, tuple(points))


def name_all(labels: Sequence[str]) -> list[str]:
    """Return a file name for each label; one that is taken, in capitals or not, gets the number of its point."""
    names: list[str] = []
    for place, name in enumerate(map(name_file, labels)):
        names.append(f"{name}-{place}" if name.lower() in map(str.lower, names) else name)
    return names


def configure(config: Config, sweep: Sweep, point: PlannedPoint) -> Config:
    changes = {sweep.key: point.value}
    if sweep.curve_key is not None:
        changes[sweep.curve_key] = point.curve
    flag = "--batch-sizes" if sweep.key == BATCH and sweep.curve_key is None else "--over"
    return change_config(config.model_dump(mode="json", exclude_none=True), flag, flags=changes)


def settle(config: Config, sweep: Sweep, resolved: Config) -> Config:
    """Take over what a point found for each auto; not from one device to others."""
    swept = {sweep.key, sweep.curve_key}
    if "device" in swept:
        return config
    found, given = (dict(flatten(one.model_dump(mode="json", exclude_none=True))) for one in (resolved, config))
    values = {key: found[key] for key in SETTLED if key not in swept and given.get(key) == "auto"}
    return change_config(config.model_dump(mode="json", exclude_none=True), "the first point", flags=values)


def resume_plan(path: Path, result: Result) -> Plan:
    """Return the plan of a sweep that is to be resumed; refuse one from another host or of other versions."""
    if result.sweep is None:
        raise ResultError(f"{path} ended before its points were written", hint=f"start again: {result.command}")
    here = {"host": socket.gethostname(), **read_software()}
    then = {"host": result.process.host, **result.software}
    differing = [
        f"{name} {then[name]} there, {here.get(name)} here"
        for name in ("host", "trainstone", "torch")
        if then.get(name) not in (None, here.get(name))
    ]
    if differing:
        raise ResultError(f"cannot resume {path}: {'; '.join(differing)}", hint="its points would not be comparable")
    return lay_out(check_settled(path), result.sweep)


def check_settled(path: Path) -> Config:
    """Return the configuration that child runs share; refuse one that was changed: they would not be comparable."""
    result, file = read_result(path), path / "config.toml"
    config = load_config(str(file))
    now, then = (dict(flatten(values)) for values in (config.model_dump(mode="json", exclude_none=True), result.config))
    changed = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    # A kill while the first point was settling them: the file is written first
    settling = set() if result.machine else {key for key in SETTLED if then.get(key) == "auto"}
    changed = [key for key in changed if key not in settling]
    if changed:
        shown = ", ".join(f"{key} was {then.get(key)}, is {now.get(key)}" for key in changed[:3])
        raise ResultError(
            f"{file} is not what the points of this {result.kind} were run with: {shown}",
            hint=f"restore it, or start again: {result.command}",
        )
    return config


def run_sweep(life: Lifecycle, plan: Plan) -> Generator[Progress | str, None, Status]:
    """Run what is left of a plan; the run folder has the rows of an earlier start where there was one."""
    life.run.begin()
    if life.run.result.sweep is None:
        life.run.update(sweep=plan.sweep, software=read_software())
    work = Work(plan, life)
    yield from run_children(life, work.list_children(), work.conclude)
    if any(row.status == "ok" for row in work.rows.values()):
        work.write(status="ok")
        return "ok"
    work.write()  # without a single number the sweep has failed as its first point did
    first = min(work.rows.values(), key=lambda row: (row.status == "not_tried", row.order))
    told = f"no point has a number; {label_row(work.sweep, first)}: {first.note}"
    hint = f"see {life.run.path / 'points'}"
    if first.status == "out_of_memory":
        hint = "give smaller ones: --batch-sizes 1,2,4"
    raise error_of_child(first.exit_code or LaunchError.exit_code, told, hint)


class Work:
    """A sweep in progress: its folder, and a row for each point that is done, by label."""

    def __init__(self, plan: Plan, life: Lifecycle) -> None:
        self.plan, self.sweep, self.life, self.run = plan, plan.sweep, life, life.run
        self.config = plan.config
        self.rows = keep_rows(self.run.path, self.run.result.sweep or plan.sweep)
        # Of the child run in progress: a point's bench or its profile, and the kernel's count before it.
        self.verb, self.point, self.kills = "", plan.points[0], count_kills()
        done = next((row for row in self.rows.values() if row.status == "ok"), None)
        if done:  # a run that is reopened has no devices
            self.run.update(devices=strip_devices(read_result(self.run.path / done.run).devices))
        self.write()

    def list_children(self) -> Iterator[ChildRun]:
        """Yield the runs that are still to be made, as they are due after the ones before."""
        total = len(self.plan.points)
        for point in self.plan.points:
            if "bench" in list_due(self.plan, self.rows, point):
                yield self.plan_child("bench", point, f"point {len(self.rows) + 1} of {total}")
            if "profile" in list_due(self.plan, self.rows, point):
                done = sum(row.status == "ok" for row in self.rows.values())
                yield self.plan_child("profile", point, f"profile of point {done} of {total}")

    def plan_child(self, verb: str, point: PlannedPoint, place: str) -> ChildRun:
        file, points = self.run.path / "launch" / f"{point.name}.toml", self.run.path / "points"
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, write_toml(configure(self.config, self.sweep, point)))
        self.verb, self.point, self.kills = verb, point, count_kills()
        command = make_command(verb, file, points, self.plan)
        return ChildRun(f"{place}: {point.label}", command, points / name_run(self.config.name))

    def conclude(self, child: ChildRun, ended: ChildEnd) -> None:
        folder = f"points/{child.folder.name}" if (child.folder / "result.json").is_file() else ""
        point = self.point
        if self.verb == "profile":
            row = self.rows[point.label].model_copy(update={"profile_run": folder})
            self.rows[point.label] = self.take_profile(row, ended, child.folder)
        else:
            row = SweepRow(value=point.value, curve=point.curve, order=point.order, status="failed", run=folder)
            self.rows[point.label] = self.take_bench(row, ended, child.folder)
            memory = self.rows[point.label].status == "out_of_memory" and self.sweep.key in TAKES_MEMORY
            for other in self.plan.points if memory and has_order(self.sweep) else ():
                # What is larger would be out of memory, too.
                if other.label not in self.rows and other.curve == point.curve and other.value > point.value:
                    note = f"{point.label} was out of memory"
                    self.rows[other.label] = SweepRow(
                        value=other.value, curve=other.curve, order=other.order, status="not_tried", note=note
                    )
        self.write()

    def take_bench(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Return the row with the point's number, or why it has none."""
        if ended.error:
            return self.judge_failure(row, ended, folder)
        child = read_result(folder)
        if not self.run.result.machine:  # of the first run: what it found for each auto, and the machine
            self.config = settle(self.config, self.sweep, load_config(str(folder / "config.toml")))
            self.run.write_config(self.config)
            self.run.write_machine(child.machine, child.software)
            self.run.update(devices=strip_devices(child.devices))
        write_timehistory(folder, self.run.path / "original/throughput_data" / f"{self.point.name}.log")
        status = "ok" if child.throughput else "failed"
        note = "" if child.throughput else f"no number: its status is {child.status}"
        return row.model_copy(update={"status": status, "note": note, **describe_measured(child)})

    def judge_failure(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Distinguish out of memory, which ends a curve, from a failure of this point, and from one that all have."""
        assert ended.error is not None
        message = ended.error.message
        if ended.code == -signal.SIGKILL:  # where the kernel killed it, its counters say why
            out_of_memory = may_be_memory(self.kills, count_kills())
        else:
            result = read_if_there(folder)
            out_of_memory = result is not None and any(one.code == "out-of-memory" for one in result.findings)
        if out_of_memory:
            code = RunError.exit_code
            return row.model_copy(update={"status": "out_of_memory", "note": message, "exit_code": code})
        # Points that share a value may fail by it: a device that is not there, a precision that crashes.
        curves = self.sweep.curve_key is not None
        unlike = any(one.value != row.value and not (curves and one.curve == row.curve) for one in self.rows.values())
        if ended.code in OF_THE_SWEEP and unlike and {one.note for one in self.rows.values()} == {message}:
            ended.check(self.point.label)
        return row.model_copy(update={"note": message, "exit_code": ended.code})

    def take_profile(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Return the row with the point's profile; a failure costs the profile only."""
        if ended.error:
            return row.model_copy(update={"profile": "failed", "note": ended.error.message})
        child = read_result(folder)
        cores = child.timeline.cores if child.timeline else None
        if cores and cores.file and (folder / cores.file).is_file():  # to where the original had it
            target = self.run.path / "original/profiled_data_ncu" / f"{self.point.name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / cores.file, target)
        return row.model_copy(update={"profile": "ok", **describe_profiled(child, cores=self.sweep.cores)})

    def write(self, **changes: Any) -> None:
        rows = [self.rows[label] for label in self.plan.labels if label in self.rows]
        sweep = self.sweep.model_copy(update={"rows": rows})
        children = [read_result(self.run.path / row.run) for row in rows if row.status == "ok"]
        profiles = [read_if_there(self.run.path / row.profile_run) for row in rows if row.profile == "ok"]
        known = [profile for profile in profiles if profile is not None]
        self.run.update(**(conclude_sweep(sweep, children, known) | changes))
        self.life.completed = f"{len(self.rows)} of {len(self.plan.points)} points"


def make_command(verb: str, config_file: Path, out: Path, plan: Plan) -> list[str]:
    command = child_command(verb, config_file, out, strict=plan.sweep.strict)
    return [*command, "--cores"] if verb == "profile" and plan.sweep.cores else command


def keep_rows(folder: Path, sweep: Sweep) -> dict[str, SweepRow]:
    """Return the rows of an earlier start that count, by label: what failed is run again, and what is not there."""
    kept = {}
    for row in sweep.rows:
        child = read_if_there(folder / row.run) if row.status == "ok" else None
        if row.status in ("out_of_memory", "not_tried") or (child is not None and child.throughput is not None):
            kept[label_row(sweep, row)] = row
    return kept


def list_due(plan: Plan, rows: Mapping[str, SweepRow], point: PlannedPoint) -> list[str]:
    row = rows.get(point.label)
    profile = ["profile"] if plan.sweep.profile else []
    if row is None:
        return ["bench", *profile]
    return profile if row.status == "ok" and row.profile is None else []


def find_due(path: Path, result: Result, plan: Plan) -> dict[str, list[str]]:
    rows = keep_rows(path, result.sweep) if result.sweep else {}
    due = {point.label: list_due(plan, rows, point) for point in plan.points}
    return {label: verbs for label, verbs in due.items() if verbs}


def write_timehistory(run: Path, target: Path) -> None:
    """Write a run's steps as the TBD suite's throughput log; none where it has too few steps for a line."""
    steps = run / "steps-rank0000.csv"
    try:
        records = list(read_records(steps)) if steps.is_file() else []
        result = read_result(run)
    except ResultError as err:
        log.warning("no throughput log: %s", err)
        return
    if not records:
        return
    requested = result.config.get("original", {}).get("every_steps")
    known = isinstance(requested, int) and requested > 0
    intervals = Intervals(choose_every(requested if known else "auto", len(records)))
    # The step file was written last when the last step ended.
    began = steps.stat().st_mtime - (records[-1].start_seconds + records[-1].step_seconds)
    text = "".join(
        intervals.format_step(r.start_seconds, r.step_seconds, r.images, began, result.process.pid) for r in records
    )
    if text:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
