"""A job that Slurm has taken: where it is, what it waits for in words, and what came of it.

It works without Slurm's accounting: the run folder knows how the run itself ended.
"""

import time
from collections.abc import Generator
from pathlib import Path

from trainstone.errors import LaunchError, TrainstoneError, error_of_child
from trainstone.launch.aftermath import record_cause, settle
from trainstone.launch.following import Tail
from trainstone.launch.slurm_commands import run_slurm
from trainstone.launch.slurm_queue import ENDED, GIVEN_UP, GONE, Job, Patience, Silence, explain_reason, read_jobs
from trainstone.machine.launched import CAUSE, CODE, FOLDER, ORDERLY, PROGRESS, read_code
from trainstone.text import printable

POLL_SECONDS = 2.0
SEEN_SECONDS = 60.0
"""Within which this host sees what another one wrote: so long NFS may believe that a file is not there."""
LOOK_SECONDS = 1.0
ENDED_ITSELF = ("COMPLETED", "FAILED", GONE)
HINTS = {
    "TIMEOUT": "give it more with --time, or let it go on by itself with --requeue",
    "OUT_OF_MEMORY": "ask for more, for example --sbatch mem=0, or take a smaller train.batch_size",
    "NODE_FAIL": "sinfo -R says what is known of the node; --requeue starts the job again by itself",
    "PREEMPTED": "--requeue starts the job again by itself",
}


def follow_job(number: str, run: Path) -> Generator[str, None, Job]:
    """Tell where a job is until it has ended; return its end. One that would wait for ever is cancelled and told."""
    tail, watch, patience, silence = Tail(run / FOLDER / PROGRESS, from_end=True), Watch(), Patience(), Silence()
    while True:
        answer = read_jobs(number)
        jobs, text = answer.jobs, silence.note(answer, time.monotonic())
        if jobs:
            why = patience.find_hopeless(jobs[0], time.monotonic())
            if why:
                raise give_up(jobs[0], why)
            text = watch.note(jobs[0])
        if text:
            yield text
        yield from tail.read()
        if jobs and jobs[0].ended:
            return jobs[0]
        time.sleep(POLL_SECONDS)


class Watch:
    """What was told of a job so far."""

    def __init__(self) -> None:
        self._told = ""
        self._restarts = 0

    def note(self, job: Job) -> str | None:
        """Return what is new of a job."""
        text = describe_job(job)
        if job.ended or (text == self._told and job.restarts == self._restarts):
            return None
        self._told = text
        if job.restarts > self._restarts:
            self._restarts = job.restarts
            return f"job {job.number} goes back into the queue, start {job.restarts + 1}; {text}"
        return text


def describe_job(job: Job) -> str:
    """Return e.g. job 12 waits: Resources (for nodes to become free)."""
    if job.state == "PENDING":
        if job.reason in ("", "None", "(null)"):
            return f"job {job.number} waits"
        return f"job {job.number} waits: {explain_reason(job.reason)}"
    if job.state == "RUNNING":
        return f"job {job.number} runs on {printable(job.nodes)}"
    return f"job {job.number} is {job.state.lower().replace('_', ' ')}"


def give_up(job: Job, why: str) -> LaunchError:
    """Take a job out of the queue; return why."""
    run_slurm(["scancel", job.number])
    return LaunchError(
        f"job {job.number} would wait for ever: {printable(why)}; it is cancelled",
        hint="sinfo shows partitions and nodes, sinfo -R why one is down; --detach leaves a job in the queue",
    )


def conclude_job(job: Job, run: Path, log: Path) -> int:
    """Return the code of the run; raise why there is none, after it was written into the run folder."""
    code = find_code(job, run, time.monotonic() + SEEN_SECONDS)
    if code is not None:
        return code
    if job.state not in ENDED_ITSELF:
        error = explain_end(job)
        record_cause(run, error, f"slurm-{job.number}")
        raise error
    text = read_log(log)
    if text or has_word(run):
        return settle(run, text, "slurm", job.exit_code, launch=f"slurm-{job.number}")
    # The script ends with the code of the cause; more of it is not to be seen from here.
    raise error_of_child(job.exit_code, f"job {job.number} ended with exit code {job.exit_code}", f"see {log}")


def find_code(job: Job, run: Path, until: float) -> int | None:
    """Return the code of an orderly end; None: there was none, or until a moment of the clock nothing tells of it."""
    if job.state in ENDED_ITSELF or job.nodes not in ("", "(null)"):
        while not has_word(run) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
    told = read_code(run)
    # The script ends with the code of an orderly run; another one is that of a failure after it.
    if told is not None and (job.state not in ENDED_ITSELF or job.exit_code in (0, told)):
        return told
    # Slurm's accounting alone does not say the code: there one that failed has 0.
    trusted = job.state == ("FAILED" if job.exit_code else "COMPLETED") and job.exit_code in ORDERLY
    return job.exit_code if trusted else None


def has_word(run: Path) -> bool:
    """Whether the run folder tells how the last attempt ended; to list it makes NFS ask the server again."""
    try:
        names = [path.name for path in (run / FOLDER).iterdir()]
    except OSError:
        return False
    return any(name in (CODE, CAUSE) or name.startswith("failed-rank") for name in names)


def explain_end(job: Job) -> TrainstoneError:
    """Return why Slurm ended a job, or why it was not waited for."""
    if job.state == GIVEN_UP:
        return LaunchError(f"job {job.number} would have waited for ever: {printable(job.reason)}")
    where = f" on {printable(job.nodes)}" if job.nodes not in ("", "(null)") else ""
    return LaunchError(
        f"Slurm ended job {job.number}{where}: {job.state}, {ENDED[job.state]}",
        hint=HINTS.get(job.state, f"scontrol show job {job.number}"),
    )


def read_log(log: Path) -> str:
    """Return what the last attempt said, where the script has set it apart; else all of the job."""
    for path in (log.with_name(f"{log.name}.last"), log):
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""
