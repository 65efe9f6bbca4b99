"""What Slurm says of a job: its state, what it waits for in words, and whether that ever comes."""

import re
from typing import NamedTuple

from trainstone.launch.slurm_commands import may_return, read_states, run_slurm
from trainstone.text import printable

SILENT_SECONDS = 30.0
"""That a controller may take to restart before we say that it does not answer."""
HOPELESS_SECONDS = 10.0
"""That Slurm may take to think better of it, for example while a node comes back."""
GONE = "GONE"
"""Slurm does not know the job any more."""
GIVEN_UP = "GIVEN_UP"
"""By us: it would have waited for ever."""
ENDED = {
    "COMPLETED": "",
    "FAILED": "",
    GONE: "",
    GIVEN_UP: "",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "its time limit was over",
    "OUT_OF_MEMORY": "it took more memory than it may",
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "another job needed its nodes",
    "BOOT_FAIL": "a node of it did not start",
    "DEADLINE": "its deadline was over",
}
WORDS = {
    "Resources": "for nodes to become free",
    "Priority": "for jobs that go before it",
    "BeginTime": "for the time that Slurm starts it again",
    "Dependency": "for another job",
    "JobHeldUser": "for its release: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "ReqNodeNotAvail": "a node that it needs is down, reserved or busy",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "AssocMaxJobsLimit": "its account runs as many jobs as it may",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as you may",
}
# Whether one that waits for these waits for ever depends on the states of nodes.
DOUBTFUL = ("ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN")
# A job that waits for one of these waits for ever.
HOPELESS = {
    "PartitionNodeLimit": "it asks for more nodes than its partition has up",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "BadConstraints": "no node is as it asks for",
    "InvalidAccount": "Slurm does not know its account",
    "InvalidQOS": "Slurm does not know its quality of service",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its quality of service may not use the partition",
    "AssocMaxWallDurationPerJobLimit": "its time limit is longer than its account allows",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than its account allows",
    "QOSMaxWallDurationPerJobLimit": "its time limit is longer than its quality of service allows",
    "QOSMaxNodePerJobLimit": "it asks for more nodes than its quality of service allows",
    "JobHoldMaxRequeue": "it was started again too often",
    "launch_failed_requeued_held": "a node could not start it, and Slurm holds it",
}
# These come just to a job that has worked before, or might have.
HELD = ("JobHoldMaxRequeue", "launch_failed_requeued_held")


class Job(NamedTuple):
    """What Slurm says of a job, or of one task of an array."""

    number: str
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    nodes: str = ""
    task: int | None = None
    partition: str = ""
    num_nodes: int = 1
    wanted: str = ""
    """The node that it is pinned to."""

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ENDED


class Answer(NamedTuple):
    """Of Slurm: a job, or all tasks of an array; none: it does not answer."""

    jobs: list[Job]
    said: str = ""
    """Instead of an answer."""


def read_jobs(number: str) -> Answer:
    """Ask for a job; of one that Slurm has forgotten only that is known."""
    done = run_slurm(["scontrol", "show", "job", "-o", number])
    if done.returncode == 0:
        return Answer([job for line in done.stdout.splitlines() if (job := read_job(line))])
    if "Invalid job id" in done.stderr + done.stdout:
        return Answer([Job(number, read_account(number))])
    return Answer([], " ".join((done.stderr or done.stdout).split()))  # a controller that restarts; ask again


class Silence:
    """How long Slurm has not answered."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    def note(self, answer: Answer, now: float) -> str | None:
        """Return, once, that Slurm does not answer, when it has not for a while."""
        if answer.jobs:
            self._since, self._told = None, False
            return None
        self._since = now if self._since is None else self._since
        if self._told or now - self._since < SILENT_SECONDS:
            return None
        self._told = True
        return f"Slurm does not answer: {printable(answer.said) or 'it says nothing'}"


def read_job(line: str) -> Job | None:
    """Return what a line of scontrol says."""
    known: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", line):
        known.setdefault(name, value)
    if "JobId" not in known or "JobState" not in known:
        return None
    task, code = known.get("ArrayTaskId", ""), known.get("ExitCode", "0:0").partition(":")
    return Job(
        number=known["JobId"],
        state=known["JobState"],
        reason=known.get("Reason", ""),
        restarts=int(known.get("Restarts", "0")),
        exit_code=int(code[0]) or (int(code[2] or 0) and 128 + int(code[2])),
        nodes=known.get("NodeList", ""),
        task=int(task) if task.isdecimal() else None,
        partition=known.get("Partition", ""),
        num_nodes=int(re.split(r"\D", known.get("NumNodes", ""))[0] or 1),
        wanted=known.get("ReqNodeList", "").replace("(null)", ""),
    )


def read_account(number: str) -> str:
    """Return how a forgotten job ended, by Slurm's accounting; where there is none, that it is gone."""
    done = run_slurm(["sacct", "-n", "-X", "-P", "-o", "State", "-j", number])
    state = done.stdout.split()[0] if done.returncode == 0 and done.stdout.split() else GONE
    return state if state in ENDED else GONE


class Patience:
    """How long a job has waited for what never comes."""

    def __init__(self) -> None:
        self._since: float | None = None

    def find_hopeless(self, job: Job, now: float) -> str | None:
        """Return why a job would wait for ever, once it has been so for a while."""
        why = explain_hopeless(job)
        self._since = None if why is None else now if self._since is None else self._since
        return why if self._since is not None and now - self._since >= HOPELESS_SECONDS else None


def explain_hopeless(job: Job) -> str | None:
    """Return in words what a job waits for, if that never comes; one that has worked before is not given up."""
    name = name_reason(job.reason)
    if name in HELD and job.state in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return explain_reason(job.reason)
    if job.state != "PENDING" or job.restarts:
        return None
    if name in HOPELESS:
        return explain_reason(job.reason)
    return find_shortage(job) if name in DOUBTFUL else None


def find_shortage(job: Job) -> str | None:
    """Return which nodes a job lacks, if those that work are too few for it even when they are free."""
    states = read_states(job.partition)
    lost = {node: state for node, state in states.items() if not may_return(state)}
    told = ", ".join(f"{node} is {state}" for node, state in lost.items())
    if job.wanted in lost:
        return f"its node {job.wanted} is {lost[job.wanted]}"
    if lost and len(states) - len(lost) < job.num_nodes:
        able = len(states) - len(lost)
        return f"it asks for {job.num_nodes} nodes and {able} of partition {job.partition} can work: {told}"
    return None


def name_reason(reason: str) -> str:
    """Return the word that a reason begins with."""
    return re.split(r"[,:]", reason)[0]


def explain_reason(reason: str) -> str:
    """Return Slurm's word and what it means."""
    meaning = HOPELESS.get(name_reason(reason)) or WORDS.get(name_reason(reason))
    told = printable(reason.replace("_", " "))
    return f"{told} ({meaning})" if meaning else told
