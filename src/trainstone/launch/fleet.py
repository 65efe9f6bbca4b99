"""The same work on every node of a Slurm partition by itself: a job array, each task pinned to its node.

One folder with a run folder for each node; `trainstone report FOLDER` makes the index.
"""

import shlex
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainstone.errors import LaunchError, ResultError
from trainstone.launch.aftermath import record_cause
from trainstone.launch.slurm import SCRIPT, submit
from trainstone.launch.slurm_commands import (
    is_usable,
    list_partitions,
    read_reservation,
    read_states,
    run_slurm,
    uninterrupted,
)
from trainstone.launch.slurm_job import ENDED_ITSELF, POLL_SECONDS, SEEN_SECONDS, explain_end, find_code
from trainstone.launch.slurm_queue import GIVEN_UP, Job, Patience, Silence, read_jobs
from trainstone.machine.launched import read_failures
from trainstone.results.store import read_result

RESUBMIT = "submit.sh"


class Nodes(NamedTuple):
    """Of a partition."""

    usable: list[str]
    left_out: dict[str, str]
    """Names and their states."""


class Member(NamedTuple):
    """What came of one node."""

    node: str
    status: str
    images_per_second: float | None
    failure: str | None
    code: int | None
    """Of an orderly end."""


def list_nodes(partition: str | None, reservation: str | None = None) -> Nodes:
    """Return the nodes of a partition, or of the default one; those that cannot work apart, with their state.

    Of a reservation only its own, which are reserved for us.
    """
    names = list_partitions()
    chosen = partition or next((name.rstrip("*") for name in names if name.endswith("*")), None)
    if chosen is None or chosen not in [name.rstrip("*") for name in names]:
        raise LaunchError(
            f"Slurm has no partition {chosen}" if chosen else "Slurm has no default partition",
            hint=f"--partition: {', '.join(names) or 'sinfo names none'}",
        )
    states = read_states(chosen)
    ours = read_reservation(reservation) if reservation else []
    states = {node: state for node, state in states.items() if not ours or node in ours}
    usable = [node for node, state in states.items() if is_usable(state, reserved=reservation is not None)]
    if not usable:
        told = ", ".join(f"{node} {state}" for node, state in states.items())
        raise LaunchError(f"no node of partition {chosen} can work: {told or 'it has none'}", hint="sinfo -R says why")
    return Nodes(usable, {node: state for node, state in states.items() if node not in usable})


def write_resubmit(nodes: Sequence[str]) -> str:
    """Return the script that submits the array again, each task on its node."""
    lines = [
        "#!/bin/bash",
        f"# Submits {SCRIPT} beside it: held, each task pinned to its node, then let go.",
        "set -eu",
        f'job=$(sbatch --parsable --hold "$(dirname "$0")/{SCRIPT}")',
        "job=${job%%;*}",
        *(f'scontrol update JobId="${{job}}_{i}" ReqNodeList={shlex.quote(node)}' for i, node in enumerate(nodes)),
        'scontrol release "$job"',
        'echo "$job"',
    ]
    return "\n".join(lines) + "\n"


def submit_fleet(script: Path, nodes: Sequence[str]) -> str:
    """Submit an array with a task for each node; return its number. Where one cannot be pinned none is left."""
    number = None
    try:
        with uninterrupted():
            number = submit(script, "--hold")
        pin_tasks(number, nodes)
    except BaseException:
        if number is not None:
            with uninterrupted():
                run_slurm(["scancel", number])
        raise
    return number


def pin_tasks(number: str, nodes: Sequence[str]) -> None:
    """Give each task of a held array its node, and let the array go."""
    commands = [
        ["scontrol", "update", f"JobId={number}_{task}", f"ReqNodeList={node}"] for task, node in enumerate(nodes)
    ]
    for command in [*commands, ["scontrol", "release", number]]:
        done = run_slurm(command)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise LaunchError(f"{shlex.join(command)}: {said}", hint="the job array is cancelled")


def follow_fleet(number: str, nodes: Sequence[str]) -> Generator[str, None, dict[str, Job]]:
    """Tell how many nodes are done until all are; return how each ended. A node that never comes is given up."""
    ended: dict[str, Job] = {}
    told, patience, silence = "", {node: Patience() for node in nodes}, Silence()
    while len(ended) < len(nodes):
        answer = read_jobs(number)
        jobs = {nodes[job.task] if job.task is not None else "": job for job in answer.jobs}
        ended |= {node: job for node, job in jobs.items() if node and job.ended and node not in ended}
        if "" in jobs and jobs[""].ended:  # an array that Slurm has forgotten is over, and its folders tell the rest
            ended = dict.fromkeys(nodes, jobs[""]) | ended
        for node in set(jobs) & set(nodes) - set(ended):
            why = patience[node].find_hopeless(jobs[node], time.monotonic())
            if why:
                run_slurm(["scancel", f"{number}_{jobs[node].task}"])
                ended[node] = jobs[node]._replace(state=GIVEN_UP, reason=why)
        running = sum(job.state == "RUNNING" for job in jobs.values())
        text = f"{len(ended)} of {len(nodes)} nodes done, {running} at work"
        if not answer.jobs:
            text = silence.note(answer, time.monotonic()) or told
        if text != told:
            told = text
            yield text
        if len(ended) < len(nodes):
            time.sleep(POLL_SECONDS)
    return ended


def gather_members(folder: Path, ended: dict[str, Job]) -> list[Member]:
    """Return what came of each node; a failure is said in its run folder as well."""
    until = time.monotonic() + SEEN_SECONDS
    return [gather_member(folder / node, node, job, until) for node, job in ended.items()]


def gather_member(run: Path, node: str, job: Job, until: float) -> Member:
    """Return what came of one node; its files may be seen late, until a moment of the clock."""
    code = find_code(job, run, until)
    failure = explain_failure(run, job) if code is None else None
    try:
        result = read_result(run)
    except ResultError as err:
        return Member(node, "failed", None, failure or err.message, code)
    rate = result.throughput.images_per_second if result.throughput else None
    return Member(node, result.status, rate, failure, code)


def explain_failure(run: Path, job: Job) -> str:
    """Return why a node's run failed: what a rank left, else what Slurm says."""
    left = read_failures(run)
    if left:
        return f"rank {left[0].rank} on {left[0].host}: {left[0].message}"
    if job.state in ENDED_ITSELF:
        return f"its job {job.number} ended with exit code {job.exit_code}"
    error = explain_end(job)
    record_cause(run, error)
    return error.message
