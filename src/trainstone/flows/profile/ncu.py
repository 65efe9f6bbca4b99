"""Run a bench under NVIDIA's ncu (Nsight Compute) to measure how busy the GPU cores are in some steps.

Finds ncu, checks its permission, lists the metrics that this GPU has, and explains ncu's errors.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

from trainstone.errors import MachineError, TrainstoneError
from trainstone.flows.child_runs import OUTPUT, TRAINSTONE, explain_end
from trainstone.flows.lifecycle import Lifecycle
from trainstone.formats.ncu import PERMISSION_HINT, read_ncu
from trainstone.machine.cpus import read_text
from trainstone.machine.launch_protocol import FOLDER, RUN, read_failures
from trainstone.machine.signals import StopSignals
from trainstone.machine.supervisor import ProcessExit, send_once, supervise
from trainstone.results.findings import finding
from trainstone.results.progress import Progress
from trainstone.results.run_folder import name_run
from trainstone.results.schema.timeline import CoreUse
from trainstone.text import printable
from trainstone.trace.core_utilisation import CYCLE_METRICS, PERCENT, PIPE_METRICS, WANTED, aggregate_cores

TABLE_NAME = "trace/ncu.csv"
LABEL = "profiling under ncu"
STOP_GRACE_SECONDS = 20.0
QUERY_SECONDS = 60.0
# Where NVIDIA's installers put ncu without changing PATH; the last in order is the newest.
USUAL_PLACES = ("usr/local/cuda*/bin/ncu", "usr/local/NVIDIA-Nsight-Compute*/ncu", "opt/nvidia/nsight-compute/*/ncu")
# Linux capabilities, by bit, that allow reading the counters: CAP_SYS_ADMIN, CAP_PERFMON.
COUNTING_CAPABILITIES = (21, 38)


def add_cores(life: Lifecycle) -> Iterator[Progress | str]:
    """Run a profile's configuration again under ncu and add the counts to the profile's result.

    The profile is valid without them: a failure becomes a finding.
    """
    run = life.run
    timeline = run.result.timeline
    assert timeline is not None  # run_profile has written it
    try:
        use = yield from run_under_ncu(run.path, timeline.steps[0].step, len(timeline.steps), life.signals)
    except TrainstoneError as err:
        missing = finding("not-measured", f"core utilisation: {err.message}", hint=err.hint, severity="warning")
        run.update(findings=[*run.result.findings, missing])
        return
    run.update(timeline=timeline.model_copy(update={"cores": use}))


def run_under_ncu(
    path: Path, start: int, iterations: int, signals: StopSignals
) -> Generator[Progress | str, None, CoreUse]:
    """Bench the configuration of a run folder with some steps under ncu, as a run in its `points`; return the counts.

    The speed of that run is meaningless: ncu executes each kernel several times.
    """
    tool = find_ncu()
    check_permission()
    yield Progress("listing the ncu metrics of this GPU")
    metrics = choose_metrics(tool)
    csv_file = path / TABLE_NAME
    csv_file.parent.mkdir(parents=True, exist_ok=True)
    csv_file.unlink(missing_ok=True)  # an old file must not be read as this run's
    yield Progress(LABEL)
    folder = (path / "points" / name_run("ncu")).absolute()
    # ncu counts only between cudaProfilerStart and cudaProfilerStop.
    command = [tool, "--csv", "--print-units", "base", "--target-processes", "all", "--profile-from-start", "off"]
    command += ["--metrics", ",".join(metrics), "--log-file", str(csv_file)]
    command += [*TRAINSTONE, "bench", str(path / "config.toml")]
    command += ["--iterations", str(start + iterations), "--set", f"measure.profiler_range=[{start},{iterations}]"]
    ended = yield from supervise(
        [*command, "--quiet", "--out", str(path / "points")],
        {RUN: str(folder), "LC_ALL": "C"},  # other locales write other numbers
        folder / FOLDER / OUTPUT,
        signals,
        label=LABEL,
        stop=partial(send_once, send=os.killpg),  # ncu does not pass signals on
        grace_seconds=STOP_GRACE_SECONDS,
    )
    if signals.received:
        raise KeyboardInterrupt(signals.received)
    messages = [line for line in (read_text(csv_file) or "").splitlines() if line.startswith("==")]
    printed = "\n".join([ended.output, *messages])
    complaints = [printable(line.strip())[:300] for line in re.findall(r"^==ERROR==\s*(.+)$", printed, re.MULTILINE)]
    if ended.code != 0:
        raise explain_ncu(ended, folder, printed, complaints)
    if not csv_file.exists() or "No kernels were profiled" in printed:
        first = "".join(f": {line}" for line in complaints[:1])
        raise MachineError(
            f"ncu recorded no kernel in steps {start} to {start + iterations - 1}{first}",
            hint=f"check that the run is on a CUDA device: trainstone report {path / 'points'}",
        )
    return aggregate_cores(read_ncu(csv_file, WANTED)).model_copy(update={"file": TABLE_NAME})


def find_ncu(root: Path = Path("/")) -> str:
    if found := shutil.which("ncu"):
        return found
    for pattern in USUAL_PLACES:
        if paths := [path for path in sorted(root.glob(pattern)) if os.access(path, os.X_OK)]:
            return str(paths[-1])
    places = ", ".join(f"/{place}" for place in USUAL_PLACES)
    raise MachineError(
        f"ncu not found on PATH or at {places}",
        hint="install the CUDA toolkit, or package nsight-compute (developer.nvidia.com/nsight-compute)",
    )


def check_permission(root: Path = Path("/")) -> None:
    """Raise if the driver lets only administrators read counters, before minutes are spent; pass if it is unknown."""
    params = read_text(root / "proc/driver/nvidia/params") or ""
    if not re.search(r"^RmProfilingAdminOnly:\s*1\s*$", params, re.MULTILINE):
        return
    effective = re.search(r"^CapEff:\s*([0-9a-f]{1,16})\s*$", read_text(root / "proc/self/status") or "", re.MULTILINE)
    if effective and not any(int(effective[1], 16) >> bit & 1 for bit in COUNTING_CAPABILITIES):
        raise MachineError(
            "this driver lets only administrators read performance counters (RmProfilingAdminOnly: 1)",
            hint=PERMISSION_HINT,
        )


def choose_metrics(ncu: str) -> list[str]:
    """Choose metric names that this GPU has, for the cycles and each pipe: ncu stops at an unknown name.

    If ncu lists none, use the names of GPUs from 2017 to 2020.
    """
    command, listing = [ncu, "--query-metrics"], ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=QUERY_SECONDS
        )
        listing = done.stdout if done.returncode == 0 else ""
    except OSError as err:
        raise MachineError(f"cannot run {ncu}: {err.strerror}", hint="put an ncu that works first on PATH") from err
    except subprocess.TimeoutExpired:
        pass  # same as a failed query: no listing
    known = {line.split()[0] for line in listing.splitlines() if line.split()}
    accepted = [CYCLE_METRICS, *(tuple(f"{name}{PERCENT}" for name in names) for names in PIPE_METRICS.values())]
    chosen = [next((name for name in names if name.split(".")[0] in known), None) for names in accepted]
    if chosen[0] is None or not any(chosen[1:]):
        return [names[0] for names in accepted]
    return [name for name in chosen if name is not None]


def explain_ncu(ended: ProcessExit, folder: Path, printed: str, complaints: list[str]) -> TrainstoneError:
    if "ERR_NVGPUCTRPERM" in printed:
        return MachineError("no permission to read GPU performance counters (ERR_NVGPUCTRPERM)", hint=PERMISSION_HINT)
    complaints = [line for line in complaints if "application returned an error code" not in line]
    if ended.code < 0 or not complaints or read_failures(folder):
        error = explain_end(folder, ended.code, ended.output)
        return type(error)(f"{LABEL}: {error.message}", hint=error.hint)
    hint = None
    if "Failed to find metric" in printed:
        hint = "this ncu does not know the metric: use the ncu of the CUDA toolkit that matches the driver"
    elif "driver resource was unavailable" in printed:
        hint = "another tool uses the counters; if it is DCGM, run `dcgmi profile --pause` and try again"
    return MachineError(f"ncu: {complaints[0]}", hint=hint)
