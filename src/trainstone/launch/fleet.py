"""Run the same work on every node of a Slurm partition: an array with one task per node.

A task of an array cannot choose its node, so submit.sh holds the array back until each task is pinned to one.
The folder of a fleet has a run folder per node; `trainstone report FOLDER` makes an index of them.
"""

import re
import shlex
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError, ResultError, TrainstoneError
from trainstone.launch.slurm import SCRIPT
from trainstone.launch.slurm_job import (
    FORGOTTEN,
    NO_ANSWER,
    POLL_SECONDS,
    VISIBLE_SECONDS,
    Job,
    conclude_job,
    describe_job,
    explain_reason,
    list_partitions,
    read_jobs,
    run_slurm,
)
from trainstone.machine.launched import FOLDER
from trainstone.results.store import read_result

SUBMIT = "submit.sh"
USABLE = ("idle", "mix", "alloc", "comp", "plnd")
"""States of nodes that work, as sinfo abbreviates them."""


class Member(NamedTuple):
    """What happened on one node."""

    node: str
    status: str
    images_per_second: float | None
    failure: str | None
    code: int | None
    """Exit code of a run that ended in order."""


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
    usable = [node for node, state in states.items() if is_usable(state, reserved=bool(only))]
    if not usable:
        described = ", ".join(f"{node} {state}" for node, state in states.items()) or "it has none"
        raise LaunchError(f"no usable node in partition {chosen}: {described}", hint="sinfo -R shows why")
    return usable, {node: state for node, state in states.items() if node not in usable}


def is_usable(state: str, *, reserved: bool) -> bool:
    """Return whether a node works; one that does not respond has a star, one in a reservation a dollar sign."""
    if reserved:
        return state.rstrip("~#!%@^$-") in (*USABLE, "resv", "maint")
    return state.rstrip("~#!%@-") in USABLE


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
        answered = jobs[0].state != NO_ANSWER
        text = describe_fleet(number, jobs, len(ended), len(nodes)) if answered else describe_job(jobs[0])
        if text != shown:
            yield text
            shown = text
        time.sleep(POLL_SECONDS)


def describe_fleet(number: str, jobs: Sequence[Job], done: int, total: int) -> str:
    """Return for example "3 of 4 nodes done, 1 pending: Resources (waiting for free nodes)"."""
    running = sum(job.state == "RUNNING" for job in jobs)
    pending = [job for job in jobs if job.state == "PENDING"]
    text = f"{done} of {total} nodes done, {running} running"
    if pending:
        reasons = "; ".join(sorted({explain_reason(job) for job in pending}))
        text += f", {len(pending)} pending: {reasons}; cancel with: scancel {number}"
    return text


def gather_members(folder: Path, number: str, ended: dict[str, Job]) -> list[Member]:
    """Return what happened on each node; a failure is written into its run folder as well."""
    until = time.monotonic() + VISIBLE_SECONDS
    logs = [folder / FOLDER / f"engine-{number}_{task}.log" for task in range(len(ended))]
    return [gather_member(folder / node, job, log, until) for (node, job), log in zip(ended.items(), logs, strict=True)]


def gather_member(run: Path, job: Job, log: Path, until: float) -> Member:
    """Return what happened on the node that the run folder is named after."""
    code, failure = None, None
    try:
        code = conclude_job(job, run, log, until)
    except TrainstoneError as err:
        failure = err.message
    try:
        result = read_result(run)
    except ResultError as err:
        return Member(run.name, "failed", None, failure or err.message, code)
    rate = result.throughput.images_per_second if result.throughput else None
    return Member(run.name, result.status, rate, failure, code)
