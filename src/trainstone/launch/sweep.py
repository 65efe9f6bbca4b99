"""Runs a sweep: each point a child process in shuffled order, its row written as soon as it is known.

Out of memory is a result. A sweep that is stopped or killed at any moment can be gone on with (launch/unfinished.py).
"""

import logging
import re
import shlex
import shutil
import signal
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainstone.config.load import load_config, write_toml
from trainstone.errors import LaunchError, ResultError, RunError, TrainstoneError, error_of_child
from trainstone.files import write_atomically
from trainstone.launch.children import Ended, child_command, explain_failure, read_child, run_child
from trainstone.launch.points import Plan, PlannedPoint, configure, settle
from trainstone.launch.timehistory import write_timehistory
from trainstone.log import log_into
from trainstone.machine.interrupt import RESUMABLE, Interrupt
from trainstone.machine.oom import Kills, count_kills, may_be_memory
from trainstone.results.checks import finding
from trainstone.results.progress import Progress
from trainstone.results.schema import Result
from trainstone.results.store import RunFolder, find_runs, read_result
from trainstone.results.sweep import TAKES_MEMORY, Sweep, SweepRow, has_order, label_row
from trainstone.results.swept import conclude_sweep, describe_measured, describe_profiled, sort_rows, strip_devices

log = logging.getLogger(__name__)

KEPT = ("ok", "out_of_memory", "not_tried")
"""Rows that are not run again; what failed is."""
OF_THE_SWEEP = (2, 3, 4)
"""Exit codes (configuration, data, machine) that other points would end with, too."""
MACHINE = 4
OF_THE_MACHINE = ("device", "train.precision")
"""Keys, beside all of engine, of which a machine may have one value and lack another."""


class Stopped(Exception):
    """Somebody asked to stop."""


def run_sweep(plan: Plan, run: RunFolder) -> Iterator[Progress]:
    """Run what is left of a plan into a run folder, which has the rows of an earlier start where there was one."""
    with Interrupt(RESUMABLE) as interrupt, log_into(run.path / "log.txt"):
        work = Work(plan, run, interrupt)
        try:
            for point in plan.points:
                if work.is_due(point):
                    yield from work.measure(point)
                if work.is_due(point, "profile"):
                    yield from work.profile(point)
        except (Stopped, KeyboardInterrupt):
            work.stop()
            return
        except TrainstoneError as err:
            failed = finding("child-failed", err.message, hint=err.hint)
            run.update(status="failed", findings=[failed, *run.result.findings])
            raise
        except OSError as err:
            raise ResultError(f"cannot write into {run.path}: {err}", hint="is the disk full?") from err
        work.finish()


class Work:
    """A sweep under way: its folder, and a row for each point that is done, by label."""

    def __init__(self, plan: Plan, run: RunFolder, interrupt: Interrupt) -> None:
        self.plan, self.run, self.interrupt = plan, run, interrupt
        self.config = plan.config
        self.rows = keep_rows(run.path, run.result.sweep or plan.sweep)
        self.write()

    def is_due(self, point: PlannedPoint, verb: str = "bench") -> bool:
        """Say whether a point's bench, or its profile, is still to be run."""
        return verb in list_due(self.plan, self.rows, point)

    def measure(self, point: PlannedPoint) -> Iterator[Progress]:
        """Run one point and write its row."""
        before, kills = self.list_folders(), count_kills()
        ended = yield from self.start("bench", point, f"point {len(self.rows) + 1} of {len(self.plan.points)}")
        folder = self.find_folder(before)
        row = SweepRow(value=point.value, curve=point.curve, order=point.order, status="failed", run=folder)
        if ended.code == 0:
            child = read_child(ended, self.run.path)
            status = "ok" if child.throughput else "failed"
            note = "" if child.throughput else f"no number: its status is {child.status}"
            self.keep(point, row, status=status, note=note, **describe_measured(child))
            self.learn_from(child)
            write_timehistory(self.run.path / folder, self.run.path / "original/throughput_data" / f"{point.name}.log")
        else:
            self.judge_failure(point, row, ended, kills)
        self.write()
        self.stop_if_asked()

    def judge_failure(self, point: PlannedPoint, row: SweepRow, ended: Ended, kills: Kills) -> None:
        """Tell out of memory, which ends a curve, from what concerns this point alone or all of them."""
        error = explain_failure(point.label, ended)
        told = error.message.removeprefix(f"{point.label}:").strip()
        if self.ran_out_of_memory(row, ended, kills):
            if ended.code == -signal.SIGKILL:
                told = "ended by SIGKILL: the kernel does so when memory is out"
            self.keep(point, row, status="out_of_memory", note=told, exit_code=RunError.exit_code)
            self.skip_larger(point)
            return
        if ended.code == -signal.SIGKILL:
            told = "ended by SIGKILL, and not by the kernel for lack of memory"
        if ended.code in OF_THE_SWEEP and not self.rows and not is_own_fault(self.plan.sweep, ended.code, told):
            raise error
        self.keep(point, row, status="failed", note=told, exit_code=ended.code)

    def ran_out_of_memory(self, row: SweepRow, ended: Ended, kills: Kills) -> bool:
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

    def profile(self, point: PlannedPoint) -> Iterator[Progress]:
        """Run a point's profile; a failure costs the profile only, unless this machine cannot do it at all."""
        before = self.list_folders()
        first = all(row.profile is None for row in self.rows.values())
        done = sum(row.status == "ok" for row in self.rows.values())
        ended = yield from self.start("profile", point, f"profile of point {done} of {len(self.plan.points)}")
        row = self.rows[point.label].model_copy(update={"profile_run": self.find_folder(before)})
        if ended.code == 0:
            child = read_child(ended, self.run.path)
            self.keep(point, row, profile="ok", **describe_profiled(child, cores=self.plan.sweep.cores))
            self.copy_cores(point, child)
        else:
            error = explain_failure(point.label, ended)
            if first and ended.code == MACHINE:
                raise error
            self.keep(point, row, profile="failed", note=error.message.removeprefix(f"{point.label}:").strip())
        self.write()
        self.stop_if_asked()

    def copy_cores(self, point: PlannedPoint, child: Result) -> None:
        """Put ncu's file where the original had it."""
        cores = child.timeline.cores if child.timeline else None
        source = self.run.path / "points" / child.run_id / cores.file if cores and cores.file else None
        if source is not None and source.is_file():
            target = self.run.path / "original/profiled_data_ncu" / f"{point.name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def start(self, verb: str, point: PlannedPoint, place: str) -> Generator[Progress, None, Ended]:
        """Write the point's configuration and run a verb on it."""
        self.stop_if_asked()
        file = self.run.path / "launch" / f"{point.name}.toml"
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, write_toml(configure(self.config, self.plan.sweep, point)))
        label = f"{place}: {point.label}"
        yield Progress(label)
        ended = yield from run_child(
            make_command(verb, file, self.run.path / "points", self.plan), label, self.interrupt
        )
        if ended.interrupted:
            raise Stopped
        return ended

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
        sweep = sort_rows(self.plan.sweep, self.rows, self.plan.labels)
        children = [self.read(row.run) for row in sweep.rows if row.status == "ok"]
        profiles = [read_if_there(self.run.path / row.profile_run) for row in sweep.rows if row.profile == "ok"]
        known = [profile for profile in profiles if profile is not None]
        self.run.update(**(conclude_sweep(sweep, children, known) | changes))

    def read(self, folder: str) -> Result:
        """Read the run of a point."""
        return read_result(self.run.path / folder)

    def list_folders(self) -> set[str]:
        """Names of the runs below points/."""
        return {path.name for path in find_runs(self.run.path / "points")}

    def find_folder(self, before: set[str]) -> str:
        """Return the folder that a child made; nothing where it made none."""
        new = sorted(self.list_folders() - before)
        return f"points/{new[-1]}" if new else ""

    def stop_if_asked(self) -> None:
        """Between children."""
        if self.interrupt.asked:
            raise Stopped

    def stop(self) -> None:
        """Write what there is, and how to go on."""
        self.write()
        stopped = finding(
            "interrupted",
            f"stopped after {len(self.rows)} of {len(self.plan.points)} points",
            hint=f"go on with: trainstone sweep {shlex.quote(str(self.run.path))}",
        )
        self.run.update(status="interrupted", findings=[stopped, *self.run.result.findings])

    def finish(self) -> None:
        """All points are done; without a single number the sweep has failed as its first point did."""
        if any(row.status == "ok" for row in self.rows.values()):
            self.write(status="ok")
            return
        self.write(status="failed")
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


def read_if_there(folder: Path) -> Result | None:
    """Read a run; None where it is gone or damaged."""
    try:
        return read_result(folder)
    except ResultError:
        return None


def list_due(plan: Plan, rows: Mapping[str, SweepRow], point: PlannedPoint) -> list[str]:
    """Return the verbs that are still to be run for a point."""
    row = rows.get(point.label)
    profile = ["profile"] if plan.sweep.profile else []
    if row is None:
        return ["bench", *profile]
    return profile if row.status == "ok" and row.profile is None else []


def is_own_fault(sweep: Sweep, exit_code: int, message: str) -> bool:
    """Say whether a point failed by its own value: what the recipe, or this machine, cannot have."""
    keys = [key for key in (sweep.key, sweep.curve_key) if key is not None]
    if exit_code == MACHINE and any(key in OF_THE_MACHINE or key.startswith("engine.") for key in keys):
        return True
    # A key of one word, as seed, may be a word of any message
    named = (re.escape(key) + ("" if "." in key else " =") for key in keys)
    return any(re.search(rf"(?<![\w./-]){name}(?![\w/])", message) for name in named)
