"""Batch scripts of Slurm: written from options and the system file, submitted, followed, and how they ended.

The text is templates/job.sh.j2. Slurm's accounting is not needed: the run folder says how the run itself ended.
A fleet is an array with one task per node. A task cannot choose its node, so submit.sh holds the array back until each
task is pinned to one. Its folder has a run folder per node; `trainstone report FOLDER` makes an index of them.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2

from trainstone.config.schema import LaunchConfig, System
from trainstone.errors import ConfigError, LaunchError, MachineError, ResultError, TrainstoneError, error_of_child
from trainstone.launch.failure_report import record_cause, settle
from trainstone.launch.verb import IMAGE_PYTHON, Verb
from trainstone.machine.launch_protocol import CAUSE, CODE, FOLDER, ORDERLY, PROGRESS, VERBS, read_code
from trainstone.machine.signals import SIGNALS, StopSignals
from trainstone.machine.supervisor import Tail
from trainstone.results.run_folder import read_result
from trainstone.text import printable

SCRIPT, SUBMIT = "job.sh", "submit.sh"
# How long before its time limit a job is signalled: enough for a checkpoint of a large model on a slow disk.
# Of a short job a quarter of its time.
SIGNAL_SECONDS = 90
MAX_REQUEUES = 100
MAX_STARTS_WITHOUT_CHECKPOINT = 3
# Options of sbatch that the launcher sets or that would break it, with what to use instead.
OWN = {
    "array": "--fleet submits an array; --sbatch array=%4 limits it to 4 tasks at a time",
    "hold": "submit with --detach, then: scontrol hold JOB",
    "test-only": "--dry-run prints the script",
    "wrap": "--prologue LINE adds shell lines",
} | dict.fromkeys(
    ("output", "error", "open-mode", "chdir", "requeue", "no-requeue", "nodes", "ntasks-per-node", "wait"),
    "see: trainstone launch slurm --help",
)
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
PARTITIONS = ("sinfo", "-h", "-o", "%P")
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


@dataclass(frozen=True)
class SlurmOptions:
    """Options of the command line; None or empty: from the system file, or a default."""

    nodes: int | None = None
    ranks_per_node: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    gres: str | None = None
    container: str | None = None
    requeue: bool = False
    prologue: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    max_restarts: int = 0


def add_system(options: SlurmOptions, system: System | None) -> SlurmOptions:
    site = system.launch if system else LaunchConfig()
    names = ("partition", "time", "account", "gres", "container")
    chosen = {name: getattr(options, name) or getattr(site, name) for name in names}
    # GPUs in gpu:4, gpu:v100:4 or gpu:2080ti:4.
    counts = re.findall(r"\bgpu(?::[\w.-]+)?[:=](\d+)(?=$|[,(])", chosen["gres"] or "")
    devices = system.devices_per_node if system else max(1, sum(map(int, counts)))
    return replace(
        options,
        **chosen,
        nodes=options.nodes or (system.nodes if system else 1),
        ranks_per_node=options.ranks_per_node or devices,
        prologue=(*site.prologue, *options.prologue),
        sbatch=(*site.sbatch, *options.sbatch),
    )


def write_script(verb: Verb, options: SlurmOptions, run: Path, folder: Path, fleet: Sequence[str] = ()) -> str:
    """Return the batch script; every value is quoted except prologue lines, which are shell.

    `folder` is where the job starts. `fleet` names nodes that each run a job of their own, in a folder below `run`.
    """
    options = add_system(options, verb.system)
    options = replace(options, nodes=1) if fleet else options
    num_ranks = (options.nodes or 1) * (options.ranks_per_node or 1)
    if num_ranks > 1 and verb.name not in VERBS:
        raise ConfigError(
            f"{verb.name} runs on one rank, not on {num_ranks}; verbs for many ranks: {', '.join(VERBS)}",
            hint="--nodes 1 --ranks-per-node 1, or --fleet for one on each node",
        )
    command, aftermath = verb.command(), [sys.executable, "-P", "-m", "trainstone.launch.failure_report"]
    if options.container is not None:
        wrap = partial(verb.wrap, image=options.container, binds=[folder, run.parent], program="apptainer")
        command = wrap(verb.command(IMAGE_PYTHON), gpus="gpu" in (options.gres or ""))
        aftermath = wrap([IMAGE_PYTHON, *aftermath[1:]], gpus=False)
    text = (resources.files("trainstone.launch") / "templates" / "job.sh.j2").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    script: str = template.render(
        quote=shlex.quote,
        title=printable(shlex.join(["trainstone", verb.name, *verb.arguments])),
        options=options,
        directives=list_directives(verb, options, run, folder, len(fleet)),
        run=refuse_line_break("the run folder", str(run)),
        nodes=shlex.join(fleet),
        num_tasks=len(fleet),
        environment=verb.system.launch.environment if verb.system else {},
        trains=verb.name == "train",
        max_requeues=MAX_REQUEUES,
        max_starts=MAX_STARTS_WITHOUT_CHECKPOINT,
        srun=shlex.join(["srun", "--kill-on-bad-exit=1", *command]),
        aftermath=shlex.join(aftermath),
    )
    return script


def list_directives(verb: Verb, options: SlurmOptions, run: Path, folder: Path, num_tasks: int) -> list[str]:
    """Return the #SBATCH options; `num_tasks`: of the array of a fleet, 0 for a job."""
    log = str(run / "launch" / "engine-").replace("%", "%%")  # Slurm replaces %j in file names
    limit = read_time(options.time or "") or 4 * SIGNAL_SECONDS  # in seconds; Slurm may signal up to a minute early
    values = {
        "job-name": f"trainstone-{re.sub(r'[^A-Za-z0-9._-]+', '-', verb.config.name)}",
        "nodes": str(options.nodes),
        "ntasks-per-node": str(options.ranks_per_node),
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "gres": options.gres,
        "signal": f"USR1@{max(1, min(SIGNAL_SECONDS, limit // 4))}",
        "chdir": str(folder),
        "output": log + ("%A_%a.log" if num_tasks else "%j.log"),
        "open-mode": "append",
    }
    found: dict[str, str | None] = {name: value for name, value in values.items() if value is not None}
    found["requeue" if options.requeue else "no-requeue"] = None
    found |= read_directives(options.sbatch, fleet=num_tasks > 0)
    if num_tasks:
        found["array"] = f"0-{num_tasks - 1}{found.get('array', '')}"
    return [write_directive(name, value) for name, value in found.items()]


def read_directives(words: Sequence[str], *, fleet: bool = False) -> dict[str, str | None]:
    """Read KEY and KEY=VALUE of --sbatch, with or without dashes; a later value replaces an earlier one.

    A fleet may limit how many of its tasks run at a time: array=%4.
    """
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.removeprefix("--")
        if not re.fullmatch("[a-z][a-z0-9-]*", name):
            raise ConfigError(
                f"invalid --sbatch {word}: expected KEY or KEY=VALUE with a long option of sbatch",
                hint="--sbatch exclusive --sbatch mem=0",
            )
        # sbatch accepts the beginning of a long name.
        own = next((own for own in OWN if own.startswith(name)), None)
        if own and not (fleet and name == "array" and re.fullmatch(r"%\d+", value)):
            raise ConfigError(f"invalid --sbatch {word}: launch slurm sets --{own} itself", hint=OWN[own])
        found[name] = value if equals else None
    return found


def write_directive(name: str, value: str | None) -> str:
    """Return an option as #SBATCH lines have it, in double quotes where necessary."""
    if value is None:
        return f"--{name}"
    refuse_line_break(f"--{name}", value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return f"--{name}={value}"
    return f"--{name}=" + '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def refuse_line_break(name: str, value: str) -> str:
    """Return the value; one with a line break could add lines to the script."""
    if any(character in value for character in "\n\r\0"):
        raise ConfigError(f"invalid {name} {value!r}: it has a line break")
    return value


def read_time(time: str) -> int | None:
    """Return the seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for anything else, such as unlimited."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        return None
    days, _, clock = time.rpartition("-")
    parts = clock.split(":")
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86_400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))


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
    if not done.returncode:
        return done.stdout.strip().splitlines()[-1].partition(";")[0]
    said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines() if line.strip()]
    reason = [line for line in said if line.startswith("Batch job submission failed")]
    words = printable("; ".join(dict.fromkeys([*said[:3], *reason])))
    if "timed out" in words.lower():
        raise LaunchError(f"Slurm did not confirm the job: {words}", hint="squeue --me shows whether it exists")
    hint = "sinfo shows partitions and their limits"
    if "partition" in words.lower():
        hint = f"--partition: {', '.join(run_slurm(*PARTITIONS).stdout.split()) or 'sinfo shows none'}"
    raise RefusedError(f"Slurm refused the job: {words}", hint=hint)


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


def follow_job(number: str, run: Path, nodes: Sequence[str] = ()) -> Generator[str, None, list[Job]]:
    """Yield the state of a job when it changes and rank 0's progress, until it has ended; return its end.

    Of an array with a task for each of `nodes`: yield how many are done; return the end of each.
    """
    tail, shown, ended = Tail(run / FOLDER / PROGRESS), "", dict[int, Job]()
    tasks = range(len(nodes) or 1)
    while True:
        jobs = read_jobs(number)
        found = {job.task: job for job in jobs if job.task is not None} if nodes else {0: jobs[0]}
        ended |= {task: job for task, job in found.items() if job.ended}
        if jobs[0].state == FORGOTTEN:
            ended = dict.fromkeys(tasks, jobs[0]) | ended
        if len(ended) == len(tasks):
            break
        text = describe_job(jobs[0])
        if nodes and jobs[0].state != NO_ANSWER:  # for example "3 of 4 nodes done, 0 running, 1 pending: Resources"
            text = f"{len(ended)} of {len(nodes)} nodes done, {sum(job.state == 'RUNNING' for job in jobs)} running"
            if pending := [printable(job.reason) for job in jobs if job.state == "PENDING"]:
                reasons = "; ".join(sorted(set(pending)))
                text += f", {len(pending)} pending: {reasons}; cancel with: scancel {number}"
        if text != shown:
            yield text
            shown = text
        yield from tail.read()
        time.sleep(POLL_SECONDS)
    yield from tail.read()
    return [ended[task] for task in tasks]


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


class FleetMember(NamedTuple):
    node: str
    status: str
    images_per_second: float | None
    failure: str | None
    code: int | None  # exit code of a run that ended in order


def list_nodes(partition: str | None, reservation: str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the usable nodes of a partition, and the states of the others; with a reservation only its nodes."""
    names = run_slurm(*PARTITIONS).stdout.split()
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


def gather_members(folder: Path, number: str, nodes: Sequence[str], ended: Sequence[Job]) -> list[FleetMember]:
    """Return what happened on each node; a failure is written into its run folder as well."""
    until = time.monotonic() + VISIBLE_SECONDS
    members = []
    for task, (node, job) in enumerate(zip(nodes, ended, strict=True)):
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
        members.append(FleetMember(node, status, rate, failure, code))
    return members
