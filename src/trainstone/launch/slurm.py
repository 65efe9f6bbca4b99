"""Slurm jobs: build the batch script from options and the system file, submit it, follow it, report how it ended.

The template is templates/job.sh.j2. Slurm's accounting is not needed: the run folder shows how the run ended.
A fleet is an array with one task per node. A task cannot choose its node, so submit.sh holds the array until each task
is pinned to a node. Its folder has a run folder per node; `trainstone report FOLDER` writes an index of them.
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
from trainstone.errors import ConfigError, LaunchError, MachineError, ResultError, TrainstoneError, build_child_error
from trainstone.launch.failure_report import record_cause, resolve_exit_code
from trainstone.launch.verb import IMAGE_PYTHON, Verb
from trainstone.machine.launch_protocol import CAUSE, CODE, FOLDER, NORMAL_EXIT_CODES, PROGRESS, VERBS, read_exit_code
from trainstone.machine.signals import SIGNALS, StopSignals
from trainstone.machine.supervisor import Tail
from trainstone.results.run_folder import read_result
from trainstone.text import printable

SCRIPT, SUBMIT = "job.sh", "submit.sh"
# A job gets a signal this long before its time limit, enough for a checkpoint of a large model on a slow disk;
# a short job gets it after three quarters of its time.
SIGNAL_SECONDS = 90
MAX_REQUEUES = 100
MAX_STARTS_WITHOUT_CHECKPOINT = 3
# sbatch options that the launcher sets or that would break it, with the alternative.
RESERVED_OPTIONS = {
    "array": "--fleet submits an array; --sbatch array=%4 limits it to 4 tasks at a time",
    "hold": "submit with --detach, then: scontrol hold JOB",
    "test-only": "--dry-run prints the script",
    "wrap": "--prologue LINE adds shell lines",
} | dict.fromkeys(
    ("output", "error", "open-mode", "chdir", "requeue", "no-requeue", "nodes", "ntasks-per-node", "wait"),
    "see: trainstone launch slurm --help",
)
POLL_SECONDS = 2.0
VISIBLE_SECONDS = 60.0  # NFS may hide another host's files for this long: acdirmax, see nfs(5)
LOOK_SECONDS = 1.0
# Additional states: Slurm does not answer, or it has forgotten the job; then the run folder shows how it ended.
NO_ANSWER, FORGOTTEN = "NO_ANSWER", "FORGOTTEN"
ENDED_STATES = ("COMPLETED", "FAILED", FORGOTTEN)
# States of jobs that Slurm ended: meaning and hint.
KILLED_STATES = {
    "CANCELLED": ("it was cancelled", None),
    "TIMEOUT": ("it reached its time limit", "raise --time, or resume automatically with --requeue"),
    "OUT_OF_MEMORY": ("it used more memory than allowed", "request more, such as --sbatch mem=0, or a smaller batch"),
    "NODE_FAIL": ("one of its nodes failed", "sinfo -R shows why; --requeue restarts the job automatically"),
    "PREEMPTED": ("another job took its nodes", "--requeue restarts the job automatically"),
    "BOOT_FAIL": ("one of its nodes did not boot", "sinfo -R shows why"),
    "DEADLINE": ("it reached its deadline", None),
}
PARTITIONS = ("sinfo", "-h", "-o", "%P")
USABLE = ("idle", "mix", "alloc", "comp", "plnd")  # states of usable nodes, as abbreviated by sinfo


# Options of sbatch with which the user sets the number of CPUs.
CPU_OPTIONS = ("cpus-per-task", "cpus-per-gpu", "exclusive", "overcommit", "mincpus", "cores-per-socket")


class RefusedError(LaunchError):
    """Slurm rejected the job."""


class Job(NamedTuple):
    number: str
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    nodes: str = ""  # empty: the job has not started
    task: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES or self.state in KILLED_STATES


@dataclass(frozen=True)
class SlurmOptions:
    """Options of `trainstone launch slurm`; None or empty: from the system file, or a default."""

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


def apply_system(options: SlurmOptions, system: System | None) -> SlurmOptions:
    """Return the options with missing values from the system file."""
    site = system.launch if system else LaunchConfig()
    names = ("partition", "time", "account", "gres", "container")
    chosen = {name: getattr(options, name) or getattr(site, name) for name in names}
    devices = system.devices_per_node if system else max(1, count_gpus(chosen["gres"]))
    return replace(
        options,
        **chosen,
        nodes=options.nodes or (system.nodes if system else 1),
        ranks_per_node=options.ranks_per_node or devices,
        prologue=(*site.prologue, *options.prologue),
        sbatch=(*site.sbatch, *options.sbatch),
    )


def count_gpus(gres: str | None) -> int:
    """Return the number of GPUs in gpu:4, gpu:v100:4 or gpu:2080ti:4."""
    return sum(map(int, re.findall(r"\bgpu(?::[\w.-]+)?[:=](\d+)(?=$|[,(])", gres or "")))


def request_cpus(options: SlurmOptions, system: System | None) -> SlurmOptions:
    """Return the options with the CPUs of each rank; unchanged if they are given, or Slurm does not show its nodes.

    Slurm's default is one CPU per rank. Ranks divide the CPUs of the smallest node, or the part that belongs to the
    requested GPUs.
    """
    chosen = apply_system(options, system)
    given = parse_directives(chosen.sbatch, fleet=True)
    if any(option.startswith(name) for name in given for option in CPU_OPTIONS) or shutil.which("sinfo") is None:
        return options
    partition, _ = choose_partition(chosen.partition)
    lines = run_slurm("sinfo", "-h", "-N", "-p", partition, "-o", "%C %G").stdout.splitlines() if partition else []
    requested, shares = count_gpus(chosen.gres), []
    for line in lines:
        cpus, _, gres = line.partition(" ")
        total, present = int(cpus.rpartition("/")[2]), count_gpus(gres)  # %C: allocated/idle/other/total
        if present >= requested:
            shares.append(total * requested // present if requested else total)
    if not shares:
        return options
    share = max(1, min(shares) // (chosen.ranks_per_node or 1))
    return replace(options, sbatch=(*options.sbatch, f"cpus-per-task={share}"))


def format_script(verb: Verb, options: SlurmOptions, run: Path, folder: Path, fleet: Sequence[str] = ()) -> str:
    """Return the batch script; every value is quoted except prologue lines, which are shell.

    `folder`: working directory of the job. `fleet`: nodes with one run each, in a folder below `run`.
    """
    options = apply_system(options, verb.system)
    options = replace(options, nodes=1) if fleet else options
    num_ranks = (options.nodes or 1) * (options.ranks_per_node or 1)
    if num_ranks > 1 and verb.name not in VERBS:
        raise ConfigError(
            f"{verb.name} cannot run on {num_ranks} ranks; only {', '.join(VERBS)} can",
            hint="--nodes 1 --ranks-per-node 1, or --fleet for one on each node",
        )
    command, report_failure = verb.command(), [sys.executable, "-P", "-m", "trainstone.launch.failure_report"]
    if options.container is not None:
        wrap = partial(verb.wrap, image=options.container, binds=[folder, run.parent], program="apptainer")
        command = wrap(verb.command(IMAGE_PYTHON), gpus="gpu" in (options.gres or ""))
        report_failure = wrap([IMAGE_PYTHON, *report_failure[1:]], gpus=False)
    # Ranks bind themselves to the cores near their GPU (machine/ranks.py); Slurm does not look at the GPUs.
    unbound = ["--cpu-bind=none"] if count_gpus(options.gres) > 1 and (options.ranks_per_node or 1) > 1 else []
    text = (resources.files("trainstone.launch") / "templates" / "job.sh.j2").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    script: str = template.render(
        quote=shlex.quote,
        title=printable(shlex.join(["trainstone", verb.name, *verb.arguments])),
        options=options,
        directives=list_directives(verb, options, run, folder, len(fleet)),
        run=check_line_break("the run folder", str(run)),
        nodes=shlex.join(fleet),
        num_tasks=len(fleet),
        environment=verb.system.launch.environment if verb.system else {},
        trains=verb.name == "train",
        max_requeues=MAX_REQUEUES,
        max_starts=MAX_STARTS_WITHOUT_CHECKPOINT,
        srun=shlex.join(["srun", "--kill-on-bad-exit=1", *unbound, *command]),
        report_failure=shlex.join(report_failure),
    )
    return script


def list_directives(verb: Verb, options: SlurmOptions, run: Path, folder: Path, num_tasks: int) -> list[str]:
    """Return the #SBATCH options; `num_tasks`: number of tasks of a fleet's array, 0 for a single job."""
    log = str(run / "launch" / "engine-").replace("%", "%%")  # Slurm replaces %j in file names
    limit = parse_time(options.time or "") or 4 * SIGNAL_SECONDS  # in seconds; Slurm may signal up to a minute early
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
    found |= parse_directives(options.sbatch, fleet=num_tasks > 0)
    if num_tasks:
        found["array"] = f"0-{num_tasks - 1}{found.get('array', '')}"
    return [format_directive(name, value) for name, value in found.items()]


def parse_directives(words: Sequence[str], *, fleet: bool = False) -> dict[str, str | None]:
    """Parse KEY and KEY=VALUE of --sbatch, with or without dashes; a later value replaces an earlier one.

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
        # sbatch accepts abbreviated option names.
        reserved = next((option for option in RESERVED_OPTIONS if option.startswith(name)), None)
        if reserved and not (fleet and name == "array" and re.fullmatch(r"%\d+", value)):
            raise ConfigError(
                f"invalid --sbatch {word}: launch slurm sets --{reserved} itself", hint=RESERVED_OPTIONS[reserved]
            )
        found[name] = value if equals else None
    return found


def format_directive(name: str, value: str | None) -> str:
    """Return an option in the syntax of #SBATCH lines, in double quotes where necessary."""
    if value is None:
        return f"--{name}"
    check_line_break(f"--{name}", value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return f"--{name}={value}"
    return f"--{name}=" + '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def check_line_break(name: str, value: str) -> str:
    """Return the value; raise if it has a line break, which could add lines to the script."""
    if any(character in value for character in "\n\r\0"):
        raise ConfigError(f"invalid {name} {value!r}: line breaks are not allowed")
    return value


def parse_time(time: str) -> int | None:
    """Return the seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for other texts, such as unlimited."""
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
            hint="use a login node of the cluster; on this machine: trainstone launch local",
        )


def run_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    require_slurm(command[0])
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Delay stop signals until the block ends, here and in child processes, so that a job number is never lost."""
    with StopSignals() as signals:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by child processes
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if signals.received:
        raise KeyboardInterrupt(signals.received)


def submit(*command: str) -> str:
    """Run sbatch --parsable, or a script that calls it; return the job number. Errors quote Slurm's message."""
    done = run_slurm(*command)
    if not done.returncode:
        return done.stdout.strip().splitlines()[-1].partition(";")[0]
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines() if line.strip()]
    reason = [line for line in lines if line.startswith("Batch job submission failed")]
    message = printable("; ".join(dict.fromkeys([*lines[:3], *reason])))
    if "timed out" in message.lower():
        raise LaunchError(f"Slurm did not confirm the job: {message}", hint="squeue --me shows whether it exists")
    hint = "sinfo lists the partitions and their limits"
    if "partition" in message.lower():
        hint = f"--partition: {', '.join(run_slurm(*PARTITIONS).stdout.split()) or 'sinfo lists none'}"
    elif "node configuration" in message:
        hint = "fewer CPUs per rank: --sbatch cpus-per-task=N; sinfo -N -o '%N %C %G' lists CPUs and GPUs"
    raise RefusedError(f"Slurm rejected the job: {message}", hint=hint)


def find_jobs(number: str) -> list[Job]:
    done = run_slurm("scontrol", "show", "job", "-o", number)
    if done.returncode == 0 and "JobState=" in done.stdout:
        return [parse_job(line) for line in done.stdout.splitlines() if "JobState=" in line]
    message = printable(" ".join((done.stderr or done.stdout).split()))
    return [Job(number, FORGOTTEN if "Invalid job id" in message else NO_ANSWER, message)]


def parse_job(line: str) -> Job:
    """Parse a line of `scontrol show job -o`; the first value of a repeated name counts."""
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
    """Follow a job to its end: yield its state when it changes, and rank 0's progress; return the ended job.

    For an array with a task per node of `nodes`: yield how many are done; return the job of each task.
    """
    tail, shown, ended = Tail(run / FOLDER / PROGRESS), "", dict[int, Job]()
    tasks = range(len(nodes) or 1)
    while True:
        jobs = find_jobs(number)
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


def resolve_job_exit_code(job: Job, run: Path, log: Path, until: float | None = None) -> int:
    """Return the exit code of the run of an ended job; otherwise write the cause into the run folder and raise it.

    Files of a job that has started may become visible late: wait for them, at most `until` (monotonic clock).
    """
    until = time.monotonic() + VISIBLE_SECONDS if until is None else until
    while (job.nodes or job.state == FORGOTTEN) and not has_ended(run) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    # The script exits with the code of the run. Slurm may fail a job and still report code 0.
    if job.exit_code in NORMAL_EXIT_CODES and job.state == ("FAILED" if job.exit_code else "COMPLETED"):
        return job.exit_code
    code = read_exit_code(run)
    if code is not None and job.state not in ("COMPLETED", "FAILED"):
        return code
    if job.state in KILLED_STATES:
        meaning, hint = KILLED_STATES[job.state]
        where = f" on {printable(job.nodes)}" if job.nodes else ""
        text = f"Slurm ended job {job.number}{where}: {job.state}, {meaning}"
        error = LaunchError(text, hint=hint or f"scontrol show job {job.number}")
        record_cause(run, error, f"slurm-{job.number}")
        raise error
    last = log.with_name(f"{log.name}.last")  # the output of the last attempt, copied by the script
    if not last.is_file() and not has_ended(run):
        raise build_child_error(job.exit_code, f"job {job.number} ended with exit code {job.exit_code}", f"see {log}")
    text = last.read_text(encoding="utf-8", errors="replace") if last.is_file() else ""
    return resolve_exit_code(run, text, "slurm", job.exit_code, launch=f"slurm-{job.number}")


def has_ended(run: Path) -> bool:
    """Return whether the run folder shows how the last attempt ended; listing it refreshes the NFS cache."""
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
    code: int | None  # exit code of a run that ended normally


def choose_partition(partition: str | None) -> tuple[str | None, list[str]]:
    """Return the partition, or Slurm's default one; and the names of all, with * behind the default."""
    names = run_slurm(*PARTITIONS).stdout.split()
    return partition or next((name.rstrip("*") for name in names if name.endswith("*")), None), names


def list_nodes(partition: str | None, reservation: str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the usable nodes of a partition and the states of the others; with a reservation, only its nodes."""
    chosen, names = choose_partition(partition)
    if chosen is None or chosen not in [name.rstrip("*") for name in names]:
        raise LaunchError(
            f"unknown Slurm partition: {chosen}" if chosen else "Slurm has no default partition; give --partition",
            hint=f"--partition: {', '.join(names) or 'sinfo lists none'}",
        )
    only = []
    if reservation:
        found = re.search(r"\bNodes=(\S+)", run_slurm("scontrol", "show", "reservation", "-o", reservation).stdout)
        only = ["-n", found[1]] if found else []
    lines = run_slurm("sinfo", "-h", "-N", "-p", chosen, *only, "-o", "%N %t").stdout.splitlines()
    states = dict(line.split(maxsplit=1) for line in lines)
    # sinfo marks a node that does not respond with *, a reserved one with $.
    flags, allowed = ("~#!%@^$-", (*USABLE, "resv", "maint")) if only else ("~#!%@-", USABLE)
    usable = [node for node, state in states.items() if state.rstrip(flags) in allowed]
    if not usable:
        described = ", ".join(f"{node} {state}" for node, state in states.items()) or "it has no nodes"
        raise LaunchError(f"no usable node in partition {chosen}: {described}", hint="sinfo -R shows why")
    return usable, {node: state for node, state in states.items() if node not in usable}


def format_submit_script(nodes: Sequence[str]) -> str:
    """Return the script that submits the array and prints its number; if a task cannot be pinned, it cancels all."""
    return f"""#!/bin/bash
# Submit {SCRIPT} as an array, hold it, pin each task to its node, then release it.
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


def collect_members(folder: Path, number: str, nodes: Sequence[str], ended: Sequence[Job]) -> list[FleetMember]:
    """Return the outcome on each node; write failures into the run folders."""
    until = time.monotonic() + VISIBLE_SECONDS
    members = []
    for task, (node, job) in enumerate(zip(nodes, ended, strict=True)):
        code, failure, status, rate = None, None, "failed", None
        try:
            code = resolve_job_exit_code(job, folder / node, folder / FOLDER / f"engine-{number}_{task}.log", until)
        except TrainstoneError as err:
            failure = err.message
        try:
            result = read_result(folder / node)
            status, rate = result.status, result.throughput.images_per_second if result.throughput else None
        except ResultError as err:
            failure = failure or err.message
        members.append(FleetMember(node, status, rate, failure, code))
    return members
