"""Runs a sweep: each point a child process in shuffled order, its row written as soon as it is known.

Out of memory is a result. A sweep that is stopped or killed at any moment can be resumed.
"""

import shutil
import signal
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainstone.config.load import load_config, write_toml
from trainstone.errors import LaunchError, RunError, error_of_child
from trainstone.files import write_atomically
from trainstone.launch.child_runs import ChildEnd, ChildRun, child_command, name_folder, run_children
from trainstone.launch.points import Plan, PlannedPoint, configure, settle
from trainstone.launch.timehistory import write_timehistory
from trainstone.machine.cpus import count_kills, may_be_memory
from trainstone.machine.facts import read_software
from trainstone.results.progress import Progress
from trainstone.results.schema import Result, Status
from trainstone.results.store import read_if_there, read_result
from trainstone.results.sweep import TAKES_MEMORY, Sweep, SweepRow, has_order, label_row
from trainstone.results.swept import conclude_sweep, describe_measured, describe_profiled, strip_devices
from trainstone.train.lifecycle import Lifecycle

KEPT = ("ok", "out_of_memory", "not_tried")
"""Rows that are not run again; what failed is."""
OF_THE_SWEEP = (2, 3, 4)
"""Exit codes (configuration, data, machine) that other points may end with, too."""


def run_sweep(life: Lifecycle, plan: Plan) -> Generator[Progress | str, None, Status]:
    """Run what is left of a plan; the run folder has the rows of an earlier start where there was one."""
    life.run.begin()
    if life.run.result.sweep is None:
        life.run.update(sweep=plan.sweep, software=read_software())
    work = Work(plan, life)
    yield from run_children(life, work.list_children(), work.conclude)
    return work.finish()


class PointRun(NamedTuple):
    """What a child run is of: a point's bench or its profile."""

    verb: str
    point: PlannedPoint
    kills: dict[str, int]
    """The kernel's count before it."""


class Work:
    """A sweep in progress: its folder, and a row for each point that is done, by label."""

    def __init__(self, plan: Plan, life: Lifecycle) -> None:
        self.plan, self.life, self.run = plan, life, life.run
        self.config = plan.config
        self.rows = keep_rows(self.run.path, self.run.result.sweep or plan.sweep)
        self.current: PointRun | None = None
        done = next((row for row in self.rows.values() if row.status == "ok"), None)
        if done:  # a run that is reopened has no devices
            self.run.update(devices=strip_devices(self.read(done.run).devices))
        self.write()

    def list_children(self) -> Iterator[ChildRun]:
        """Yield the runs that are still to be made, as they are due after the ones before."""
        total = len(self.plan.points)
        for point in self.plan.points:
            if self.is_due(point):
                yield self.plan_child("bench", point, f"point {len(self.rows) + 1} of {total}")
            if self.is_due(point, "profile"):
                done = sum(row.status == "ok" for row in self.rows.values())
                yield self.plan_child("profile", point, f"profile of point {done} of {total}")

    def plan_child(self, verb: str, point: PlannedPoint, place: str) -> ChildRun:
        """Write the point's configuration; return the run of a verb on it."""
        file = self.run.path / "launch" / f"{point.name}.toml"
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, write_toml(configure(self.config, self.plan.sweep, point)))
        self.current = PointRun(verb, point, count_kills())
        command = make_command(verb, file, self.run.path / "points", self.plan)
        return ChildRun(f"{place}: {point.label}", command, name_folder(self.run.path, self.config.name))

    def conclude(self, child: ChildRun, ended: ChildEnd) -> None:
        """Write the row of the run that has ended."""
        assert self.current is not None
        folder = f"points/{child.folder.name}" if (child.folder / "result.json").is_file() else ""
        take = self.take_bench if self.current.verb == "bench" else self.take_profile
        take(self.current, folder, ended)
        self.write()

    def is_due(self, point: PlannedPoint, verb: str = "bench") -> bool:
        """Say whether a point's bench, or its profile, is still to be run."""
        return verb in list_due(self.plan, self.rows, point)

    def take_bench(self, current: PointRun, folder: str, ended: ChildEnd) -> None:
        """Take a point's number, or why it has none."""
        point = current.point
        row = SweepRow(value=point.value, curve=point.curve, order=point.order, status="failed", run=folder)
        if ended.error:
            self.judge_failure(point, row, ended, current.kills)
            return
        child = self.read(folder)
        status = "ok" if child.throughput else "failed"
        note = "" if child.throughput else f"no number: its status is {child.status}"
        self.keep(point, row, status=status, note=note, **describe_measured(child))
        self.learn_from(child)
        write_timehistory(self.run.path / folder, self.run.path / "original/throughput_data" / f"{point.name}.log")

    def judge_failure(self, point: PlannedPoint, row: SweepRow, ended: ChildEnd, kills: dict[str, int]) -> None:
        """Distinguish out of memory, which ends a curve, from a failure of this point, and from one that all have."""
        assert ended.error is not None
        message = ended.error.message
        if self.ran_out_of_memory(row, ended, kills):
            self.keep(point, row, status="out_of_memory", note=message, exit_code=RunError.exit_code)
            self.skip_larger(point)
            return
        # Points that share a value may fail by it: a device that is not there, a precision that crashes.
        curves = self.plan.sweep.curve_key is not None
        unlike = any(one.value != row.value and not (curves and one.curve == row.curve) for one in self.rows.values())
        if ended.code in OF_THE_SWEEP and unlike and {one.note for one in self.rows.values()} == {message}:
            ended.check(point.label)
        self.keep(point, row, status="failed", note=message, exit_code=ended.code)

    def ran_out_of_memory(self, row: SweepRow, ended: ChildEnd, kills: dict[str, int]) -> bool:
        """By what the child wrote; where the kernel killed it, by the kernel's counters."""
        if ended.code == -signal.SIGKILL:
            return may_be_memory(kills, count_kills())
        result = read_if_there(self.run.path / row.run) if row.run else None
        return result is not None and any(f.code == "out-of-memory" for f in result.findings)

    def skip_larger(self, point: PlannedPoint) -> None:
        """What is larger would be out of memory, too, where the key is one that takes memory."""
        if self.plan.sweep.key not in TAKES_MEMORY or not has_order(self.plan.sweep):
            return
        for other in self.plan.points:
            if self.is_due(other) and other.curve == point.curve and other.value > point.value:
                row = SweepRow(value=other.value, curve=other.curve, order=other.order, status="not_tried")
                self.keep(other, row, note=f"{point.label} was out of memory")

    def take_profile(self, current: PointRun, folder: str, ended: ChildEnd) -> None:
        """Take a point's profile; a failure costs the profile only."""
        point = current.point
        row = self.rows[point.label].model_copy(update={"profile_run": folder})
        if ended.error:
            self.keep(point, row, profile="failed", note=ended.error.message)
            return
        child = self.read(folder)
        self.keep(point, row, profile="ok", **describe_profiled(child, cores=self.plan.sweep.cores))
        self.copy_cores(point, child)

    def copy_cores(self, point: PlannedPoint, child: Result) -> None:
        """Put ncu's file where the original had it."""
        cores = child.timeline.cores if child.timeline else None
        source = self.run.path / "points" / child.run_id / cores.file if cores and cores.file else None
        if source is not None and source.is_file():
            target = self.run.path / "original/profiled_data_ncu" / f"{point.name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def learn_from(self, child: Result) -> None:
        """Of the first run: what it found for each auto, and the machine."""
        if self.run.result.machine:
            return
        resolved = load_config(str(self.run.path / "points" / child.run_id / "config.toml"))
        self.config = settle(self.config, self.plan.sweep, resolved)
        self.run.write_config(self.config)
        self.run.write_machine(child.machine, child.software)
        self.run.update(devices=strip_devices(child.devices))

    def keep(self, point: PlannedPoint, row: SweepRow, **changes: Any) -> None:
        """Take a row."""
        self.rows[point.label] = row.model_copy(update=changes)

    def write(self, **changes: Any) -> None:
        """Judge the rows so far and write the result."""
        rows = [self.rows[label] for label in self.plan.labels if label in self.rows]
        sweep = self.plan.sweep.model_copy(update={"rows": rows})
        children = [self.read(row.run) for row in sweep.rows if row.status == "ok"]
        profiles = [read_if_there(self.run.path / row.profile_run) for row in sweep.rows if row.profile == "ok"]
        known = [profile for profile in profiles if profile is not None]
        self.run.update(**(conclude_sweep(sweep, children, known) | changes))
        self.life.completed = f"{len(self.rows)} of {len(self.plan.points)} points"

    def read(self, folder: str) -> Result:
        """Read the run of a point."""
        return read_result(self.run.path / folder)

    def finish(self) -> Status:
        """All points are done; without a single number the sweep has failed as its first point did."""
        if any(row.status == "ok" for row in self.rows.values()):
            self.write(status="ok")
            return "ok"
        self.write()
        first = min(self.rows.values(), key=lambda row: (row.status == "not_tried", row.order))
        told = f"no point has a number; {label_row(self.plan.sweep, first)}: {first.note}"
        hint = f"see {self.run.path / 'points'}"
        if first.status == "out_of_memory":
            hint = "give smaller ones: --batch-sizes 1,2,4"
        raise error_of_child(first.exit_code or LaunchError.exit_code, told, hint)


def make_command(verb: str, config_file: Path, out: Path, plan: Plan) -> list[str]:
    """Return the command line of a point's bench or profile."""
    command = child_command(verb, config_file, out, strict=plan.sweep.strict)
    return [*command, "--cores"] if verb == "profile" and plan.sweep.cores else command


def keep_rows(folder: Path, sweep: Sweep) -> dict[str, SweepRow]:
    """Return the rows of an earlier start that count, by label: what failed is run again, and what is not there."""
    return {label_row(sweep, row): row for row in sweep.rows if is_kept(folder, row)}


def is_kept(folder: Path, row: SweepRow) -> bool:
    """Say whether a row stays as it is."""
    if row.status != "ok":
        return row.status in KEPT
    result = read_if_there(folder / row.run)
    return result is not None and result.throughput is not None


def list_due(plan: Plan, rows: Mapping[str, SweepRow], point: PlannedPoint) -> list[str]:
    """Return the verbs that are still to be run for a point."""
    row = rows.get(point.label)
    profile = ["profile"] if plan.sweep.profile else []
    if row is None:
        return ["bench", *profile]
    return profile if row.status == "ok" and row.profile is None else []


def find_due(path: Path, result: Result, plan: Plan) -> dict[str, list[str]]:
    """Return the verbs still to be run, by the label of their point."""
    rows = keep_rows(path, result.sweep) if result.sweep else {}
    due = {point.label: list_due(plan, rows, point) for point in plan.points}
    return {label: verbs for label, verbs in due.items() if verbs}
