"""Submit a job to Slurm, follow it, and find out how it ended; or the same work on every node of a partition.

Slurm's accounting is not needed: the run folder says how the run itself ended.
A fleet is an array with one task per node. A task cannot choose its node, so submit.sh holds the array back until each
task is pinned to one. Its folder has a run folder per node; `trainstone report FOLDER` makes an index of them.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError, MachineError, ResultError, TrainstoneError, error_of_child
from trainstone.launch.aftermath import record_cause, settle
from trainstone.launch.slurm import SCRIPT
from trainstone.launch.supervisor import Tail
from trainstone.machine.launched import CAUSE, CODE, FOLDER, ORDERLY, PROGRESS, read_code
from trainstone.machine.signals import SIGNALS, StopSignals
from trainstone.results.store import read_result
from trainstone.text import printable

POLL_SECONDS = 2.0
VISIBLE_SECONDS = 60.0  # how long NFS may hide from this host what another host has written: acdirmax, see nfs(5)
LOOK_SECONDS = 1.0
# States of our own: Slurm does not answer, or it does not know the job any more; then the run folder says its end.
NO_ANSWER, FORGOTTEN = "NO_ANSWER", "FORGOTTEN"
BY_ITSELF = ("COMPLETED", "FAILED", FORGOTTEN)
# States of jobs that Slurm ended: meaning and hint.
BY_SLURM = {
    "CANCELLED": ("it was cancelled", None),
    "TIMEOUT": ("it reached its time limit", "raise --time, or let the job resume by itself with --requeue"),
    "OUT_OF_MEMORY": ("it used more memory than allowed", "request more, such as --sbatch mem=0, or a smaller batch"),
    "NODE_FAIL": ("one of its nodes failed", "sinfo -R shows why; --requeue restarts the job by itself"),
    "PREEMPTED": ("another job took its nodes", "--requeue restarts the job by itself"),
    "BOOT_FAIL": ("one of its nodes did not boot", "sinfo -R shows why"),
    "DEADLINE": ("it reached its deadline", None),
}
SUBMIT = "submit.sh"
USABLE = ("idle", "mix", "alloc", "comp", "plnd")  # states of nodes that work, as sinfo abbreviates them


class RefusedError(LaunchError):
    """Slurm has not accepted the job."""


class Job(NamedTuple):
    number: str
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    nodes: str = ""  # empty: it has not started
    task: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in BY_ITSELF or self.state in BY_SLURM


def require_slurm(program: str = "sbatch") -> None:
    if shutil.which(program) is None:
        raise MachineError(
            f"{program} not found on {os.uname().nodename}: launch slurm needs Slurm's commands",
            hint="use a login node of the cluster, or trainstone launch local on this machine",
        )


def run_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    require_slurm(command[0])
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Delay stop signals to the end of the block, here and in child processes: the number of a job must be known."""
    with StopSignals() as signals:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # child processes inherit it
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if signals.received:
        raise KeyboardInterrupt(signals.received)


def submit(*command: str) -> str:
    """Run sbatch --parsable, or a script that does; return the job's number. A refusal has Slurm's own words."""
    done = run_slurm(*command)
    if done.returncode:
        raise explain_refusal(done.stderr)
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def explain_refusal(text: str) -> LaunchError:
    """Return sbatch's refusal as one message; an unknown partition with the existing ones."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines() if line.strip()]
    reason = [line for line in lines if line.startswith("Batch job submission failed")]
    words = printable("; ".join(dict.fromkeys([*lines[:3], *reason])))
    if "timed out" in words.lower():
        return LaunchError(f"Slurm did not confirm the job: {words}", hint="squeue --me shows whether it exists")
    hint = "sinfo shows partitions and their limits"
    if "partition" in words.lower():
        hint = f"--partition: {', '.join(list_partitions()) or 'sinfo shows none'}"
    return RefusedError(f"Slurm refused the job: {words}", hint=hint)


def list_partitions() -> list[str]:
    return run_slurm("sinfo", "-h", "-o", "%P").stdout.split()


def read_jobs(number: str) -> list[Job]:
    done = run_slurm("scontrol", "show", "job", "-o", number)
    if done.returncode == 0 and "JobState=" in done.stdout:
        return [read_job(line) for line in done.stdout.splitlines() if "JobState=" in line]
    said = printable(" ".join((done.stderr or done.stdout).split()))
    return [Job(number, FORGOTTEN if "Invalid job id" in said else NO_ANSWER, said)]


def read_job(line: str) -> Job:
    """Parse a line of `scontrol show job -o`; the first value of a name counts."""
    known = dict(reversed(re.findall(r"(?:^|\s)(\w+)=(\S*)", line)))
    task, (code, _, number) = known.get("ArrayTaskId", ""), known.get("ExitCode", "0:0").partition(":")
    return Job(
        number=known["JobId"],
        state=known["JobState"],
        reason=known.get("Reason", ""),
        restarts=int(known.get("Restarts", "0")),
        exit_code=int(code) or (128 + int(number) if int(number) else 0),
        nodes=known.get("NodeList", "").replace("(null)", ""),
        task=int(task) if task.isdecimal() else None,
    )


def follow_job(number: str, run: Path) -> Generator[str, None, Job]:
    """Yield the state of a job when it changes and rank 0's progress, until the job ends; return its end."""
    tail, shown = Tail(run / FOLDER / PROGRESS), ""
    while not (job := read_jobs(number)[0]).ended:
        text = describe_job(job)
        if text != shown:
            yield text
            shown = text
        yield from tail.read()
        time.sleep(POLL_SECONDS)
    yield from tail.read()
    return job


def describe_job(job: Job) -> str:
    """Return for example "job 12 is pending: Resources; cancel it with: scancel 12"."""
    start = f" (start {job.restarts + 1})" if job.restarts else ""
    if job.state == NO_ANSWER:
        return f"Slurm does not answer: {job.reason}"
    if job.state == "PENDING":
        return f"job {job.number} is pending{start}: {printable(job.reason)}; cancel it with: scancel {job.number}"
    where = f" on {printable(job.nodes)}" if job.nodes else ""
    return f"job {job.number} is {job.state.lower().replace('_', ' ')}{where}{start}"


def conclude_job(job: Job, run: Path, log: Path, until: float | None = None) -> int:
    """Return the exit code of the run; otherwise write the cause into the run folder and raise it.

    Wait `until` a time of the monotonic clock for the files of a job that has started.
    """
    until = time.monotonic() + VISIBLE_SECONDS if until is None else until
    while (job.nodes or job.state == FORGOTTEN) and not has_ended(run) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    # The script ends with the exit code of the run. Slurm itself may fail a job and leave its code at 0.
    if job.exit_code in ORDERLY and job.state == ("FAILED" if job.exit_code else "COMPLETED"):
        return job.exit_code
    code = read_code(run)
    if code is not None and job.state not in ("COMPLETED", "FAILED"):
        return code
    if job.state in BY_SLURM:
        meaning, hint = BY_SLURM[job.state]
        where = f" on {printable(job.nodes)}" if job.nodes else ""
        text = f"Slurm ended job {job.number}{where}: {job.state}, {meaning}"
        error = LaunchError(text, hint=hint or f"scontrol show job {job.number}")
        record_cause(run, error, f"slurm-{job.number}")
        raise error
    last = log.with_name(f"{log.name}.last")  # the output of the last attempt, copied by the script
    if not last.is_file() and not has_ended(run):
        raise error_of_child(job.exit_code, f"job {job.number} ended with exit code {job.exit_code}", f"see {log}")
    text = last.read_text(encoding="utf-8", errors="replace") if last.is_file() else ""
    return settle(run, text, "slurm", job.exit_code, launch=f"slurm-{job.number}")


def has_ended(run: Path) -> bool:
    """Return whether the run folder shows how the last attempt ended; listing it makes NFS ask the server again."""
    try:
        names = [path.name for path in (run / FOLDER).iterdir()]
    except OSError:
        return False
    return any(name in (CODE, CAUSE) or name.startswith("failed-rank") for name in names)


class Member(NamedTuple):
    node: str
    status: str
    images_per_second: float | None
    failure: str | None
    code: int | None  # exit code of a run that ended in order


def list_nodes(partition: str | None, reservation: str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the usable nodes of a partition, and the states of the others; with a reservation only its nodes."""
    names = list_partitions()
    chosen = partition or next((name.rstrip("*") for name in names if name.endswith("*")), None)
    if chosen is None or chosen not in [name.rstrip("*") for name in names]:
        raise LaunchError(
            f"Slurm has no partition {chosen}" if chosen else "Slurm has no default partition",
            hint=f"--partition: {', '.join(names) or 'sinfo shows none'}",
        )
    only = []
    if reservation:
        found = re.search(r"\bNodes=(\S+)", run_slurm("scontrol", "show", "reservation", "-o", reservation).stdout)
        only = ["-n", found[1]] if found else []
    lines = run_slurm("sinfo", "-h", "-N", "-p", chosen, *only, "-o", "%N %t").stdout.splitlines()
    states = dict(line.split(maxsplit=1) for line in lines)
    # A node that does not respond has a star, one in a reservation a dollar sign.
    flags, allowed = ("~#!%@^$-", (*USABLE, "resv", "maint")) if only else ("~#!%@-", USABLE)
    usable = [node for node, state in states.items() if state.rstrip(flags) in allowed]
    if not usable:
        described = ", ".join(f"{node} {state}" for node, state in states.items()) or "it has none"
        raise LaunchError(f"no usable node in partition {chosen}: {described}", hint="sinfo -R shows why")
    return usable, {node: state for node, state in states.items() if node not in usable}


def write_submit(nodes: Sequence[str]) -> str:
    """Return the script that submits the array and prints its number; if a task cannot be pinned, none is left."""
    return f"""#!/bin/bash
# Submit {SCRIPT} as an array that is held until each task is pinned to its node.
set -eu
job=$(sbatch --parsable --hold "$(dirname "$0")/{SCRIPT}")
job=${{job%%;*}}
trap 'scancel "$job"; exit 5' ERR INT TERM
task=0
for node in {shlex.join(nodes)}; do
    scontrol update JobId="${{job}}_$task" ReqNodeList="$node"
    task=$((task + 1))
done
scontrol release "$job"
echo "$job"
"""


def follow_fleet(number: str, nodes: Sequence[str]) -> Generator[str, None, dict[str, Job]]:
    """Yield how many nodes are done when that changes, until all are; return how each job ended."""
    ended: dict[str, Job] = {}
    shown = ""
    while True:
        jobs = read_jobs(number)
        ended |= {nodes[job.task]: job for job in jobs if job.task is not None and job.ended}
        if jobs[0].state == FORGOTTEN:
            ended = dict.fromkeys(nodes, jobs[0]) | ended
        if len(ended) == len(nodes):
            return {node: ended[node] for node in nodes}
        text = describe_job(jobs[0])
        if jobs[0].state != NO_ANSWER:  # for example "3 of 4 nodes done, 0 running, 1 pending: Resources"
            text = f"{len(ended)} of {len(nodes)} nodes done, {sum(job.state == 'RUNNING' for job in jobs)} running"
            if pending := [printable(job.reason) for job in jobs if job.state == "PENDING"]:
                reasons = "; ".join(sorted(set(pending)))
                text += f", {len(pending)} pending: {reasons}; cancel with: scancel {number}"
        if text != shown:
            yield text
            shown = text
        time.sleep(POLL_SECONDS)


def gather_members(folder: Path, number: str, ended: dict[str, Job]) -> list[Member]:
    """Return what happened on each node; a failure is written into its run folder as well."""
    until = time.monotonic() + VISIBLE_SECONDS
    members = []
    for task, (node, job) in enumerate(ended.items()):
        code, failure, status, rate = None, None, "failed", None
        try:
            code = conclude_job(job, folder / node, folder / FOLDER / f"engine-{number}_{task}.log", until)
        except TrainstoneError as err:
            failure = err.message
        try:
            result = read_result(folder / node)
            status, rate = result.status, result.throughput.images_per_second if result.throughput else None
        except ResultError as err:
            failure = failure or err.message
        members.append(Member(node, status, rate, failure, code))
    return members
