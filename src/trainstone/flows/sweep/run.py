"""`trainstone sweep`: run each planned point in a child process and collect the results as rows.

A point's row is written as soon as the point has ended. Out of memory is a result. A sweep that is stopped or killed at
any moment can be resumed.
"""

import logging
import shutil
import signal
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainstone.config.load import (
    format_toml,
    load_config,
)
from trainstone.errors import LaunchError, ResultError, RunError, build_child_error
from trainstone.files import write_atomically
from trainstone.flows.child_runs import ChildEnd, ChildRun, child_command, run_children
from trainstone.flows.lifecycle import Lifecycle
from trainstone.flows.sweep.plan import PlannedPoint, SweepPlan, apply_resolved, configure_point
from trainstone.formats.timehistory import Intervals, choose_log_steps
from trainstone.machine.cpus import count_oom_kills, may_be_out_of_memory
from trainstone.machine.facts import read_software
from trainstone.results.combine import collect_measured, collect_profiled, combine_sweep, strip_devices
from trainstone.results.knee import TAKES_MEMORY, has_order, label_row
from trainstone.results.progress import Progress
from trainstone.results.run_folder import name_run, read_if_there, read_result
from trainstone.results.schema.run import Result, Status
from trainstone.results.schema.sweep import Sweep, SweepRow
from trainstone.results.steps import read_records

log = logging.getLogger(__name__)

COMMON_EXIT_CODES = (2, 3, 4)  # configuration, data, machine: errors that all points are likely to have


def run_sweep(life: Lifecycle, plan: SweepPlan) -> Generator[Progress | str, None, Status]:
    """Run the points of a plan that have no row yet; a resumed run folder has the rows of earlier starts."""
    life.run.commit()
    if life.run.result.sweep is None:
        life.run.update(sweep=plan.sweep, software=read_software())
    work = SweepProgress(plan, life)
    yield from run_children(life, work.list_children(), work.conclude)
    if any(row.status == "ok" for row in work.rows.values()):
        work.write(status="ok")
        return "ok"
    work.write()  # no point succeeded: the sweep fails with the error of its first point
    first = min(work.rows.values(), key=lambda row: (row.status == "not_tried", row.order))
    message = f"no point was measured; {label_row(work.sweep, first)}: {first.note}"
    hint = f"see {life.run.path / 'points'}"
    if first.status == "out_of_memory":
        hint = "use smaller batches: --batch-sizes 1,2,4"
    raise build_child_error(first.exit_code or LaunchError.exit_code, message, hint)


class SweepProgress:
    """A sweep in progress: its run folder, and a row for each finished point, by label."""

    def __init__(self, plan: SweepPlan, life: Lifecycle) -> None:
        self.plan, self.sweep, self.life, self.run = plan, plan.sweep, life, life.run
        self.config = plan.config
        self.rows = keep_rows(self.run.path, self.run.result.sweep or plan.sweep)
        # The child run in progress: bench or profile, its point, and the kernel's count of OOM kills before it.
        self.verb, self.point, self.kills = "", plan.points[0], count_oom_kills()
        done = next((row for row in self.rows.values() if row.status == "ok"), None)
        if done:  # a resumed run has no devices yet
            self.run.update(devices=strip_devices(read_result(self.run.path / done.run).devices))
        self.write()

    def list_children(self) -> Iterator[ChildRun]:
        """Yield the child runs that are still due; later ones depend on how earlier ones ended."""
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
        write_atomically(file, format_toml(configure_point(self.config, self.sweep, point)))
        self.verb, self.point, self.kills = verb, point, count_oom_kills()
        command = make_command(verb, file, points, self.plan)
        return ChildRun(f"{place}: {point.label}", command, points / name_run(self.config.name))

    def conclude(self, child: ChildRun, ended: ChildEnd) -> None:
        folder = f"points/{child.folder.name}" if (child.folder / "result.json").is_file() else ""
        point = self.point
        if self.verb == "profile":
            row = self.rows[point.label].model_copy(update={"profile_run": folder})
            self.rows[point.label] = self.record_profile(row, ended, child.folder)
        else:
            row = SweepRow(value=point.value, curve=point.curve, order=point.order, status="failed", run=folder)
            self.rows[point.label] = self.record_bench(row, ended, child.folder)
            memory = self.rows[point.label].status == "out_of_memory" and self.sweep.key in TAKES_MEMORY
            for other in self.plan.points if memory and has_order(self.sweep) else ():
                # Larger values would run out of memory, too.
                if other.label not in self.rows and other.curve == point.curve and other.value > point.value:
                    note = f"{point.label} was out of memory"
                    self.rows[other.label] = SweepRow(
                        value=other.value, curve=other.curve, order=other.order, status="not_tried", note=note
                    )
        self.write()

    def record_bench(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Return the row with the point's measurements, or with the reason why there are none."""
        if ended.error:
            return self.classify_failure(row, ended, folder)
        child = read_result(folder)
        if not self.run.result.machine:  # the first point resolves auto for all, and describes the machine
            self.config = apply_resolved(self.config, self.sweep, load_config(str(folder / "config.toml")))
            self.run.write_config(self.config)
            self.run.write_machine(child.machine, child.software)
            self.run.update(devices=strip_devices(child.devices))
        write_timehistory(folder, self.run.path / "original/throughput_data" / f"{self.point.name}.log")
        status = "ok" if child.throughput else "failed"
        note = "" if child.throughput else f"not measured: status {child.status}"
        return row.model_copy(update={"status": status, "note": note, **collect_measured(child)})

    def classify_failure(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Return the row of a failed point; raise if all points so far have failed with the same error."""
        assert ended.error is not None
        message = ended.error.message
        if ended.code == -signal.SIGKILL:  # the kernel's OOM counters show whether memory was the reason
            out_of_memory = may_be_out_of_memory(self.kills, count_oom_kills())
        else:
            result = read_if_there(folder)
            out_of_memory = result is not None and any(one.code == "out-of-memory" for one in result.findings)
        if out_of_memory:
            code = RunError.exit_code
            return row.model_copy(update={"status": "out_of_memory", "note": message, "exit_code": code})
        # Points that share a value may fail because of it: a missing device, a precision that crashes.
        curves = self.sweep.curve_key is not None
        unlike = any(one.value != row.value and not (curves and one.curve == row.curve) for one in self.rows.values())
        if ended.code in COMMON_EXIT_CODES and unlike and {one.note for one in self.rows.values()} == {message}:
            ended.check(self.point.label)
        return row.model_copy(update={"note": message, "exit_code": ended.code})

    def record_profile(self, row: SweepRow, ended: ChildEnd, folder: Path) -> SweepRow:
        """Return the row with the point's profile; if profiling failed, the row keeps its measurements."""
        if ended.error:
            return row.model_copy(update={"profile": "failed", "note": ended.error.message})
        child = read_result(folder)
        cores = child.timeline.cores if child.timeline else None
        if cores and cores.file and (folder / cores.file).is_file():  # the place where the original writes it
            target = self.run.path / "original/profiled_data_ncu" / f"{self.point.name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / cores.file, target)
        return row.model_copy(update={"profile": "ok", **collect_profiled(child, cores=self.sweep.cores)})

    def write(self, **changes: Any) -> None:
        rows = [self.rows[label] for label in self.plan.labels if label in self.rows]
        sweep = self.sweep.model_copy(update={"rows": rows})
        children = [read_result(self.run.path / row.run) for row in rows if row.status == "ok"]
        profiles = [read_if_there(self.run.path / row.profile_run) for row in rows if row.profile == "ok"]
        known = [profile for profile in profiles if profile is not None]
        self.run.update(**(combine_sweep(sweep, children, known) | changes))
        self.life.completed = f"{len(self.rows)} of {len(self.plan.points)} points"


def make_command(verb: str, config_file: Path, out: Path, plan: SweepPlan) -> list[str]:
    command = child_command(verb, config_file, out, strict=plan.sweep.strict)
    return [*command, "--cores"] if verb == "profile" and plan.sweep.cores else command


def keep_rows(folder: Path, sweep: Sweep) -> dict[str, SweepRow]:
    """Return the valid rows of an earlier start by label; points that failed or have no run folder run again."""
    kept = {}
    for row in sweep.rows:
        child = read_if_there(folder / row.run) if row.status == "ok" else None
        if row.status in ("out_of_memory", "not_tried") or (child is not None and child.throughput is not None):
            kept[label_row(sweep, row)] = row
    return kept


def list_due(plan: SweepPlan, rows: Mapping[str, SweepRow], point: PlannedPoint) -> list[str]:
    row = rows.get(point.label)
    profile = ["profile"] if plan.sweep.profile else []
    if row is None:
        return ["bench", *profile]
    return profile if row.status == "ok" and row.profile is None else []


def find_due(path: Path, result: Result, plan: SweepPlan) -> dict[str, list[str]]:
    rows = keep_rows(path, result.sweep) if result.sweep else {}
    due = {point.label: list_due(plan, rows, point) for point in plan.points}
    return {label: verbs for label, verbs in due.items() if verbs}


def write_timehistory(run: Path, target: Path) -> None:
    """Write a run's steps as a throughput log of the TBD suite; no file if there are too few steps for a line."""
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
    intervals = Intervals(choose_log_steps(requested if known else "auto", len(records)))
    # The step file was written last when the last step ended.
    began = steps.stat().st_mtime - (records[-1].start_seconds + records[-1].step_seconds)
    text = "".join(
        intervals.format_step(r.start_seconds, r.step_seconds, r.images, began, result.process.pid) for r in records
    )
    if text:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
