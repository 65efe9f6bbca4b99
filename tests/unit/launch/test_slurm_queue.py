"""What Slurm says of jobs, and which of them wait for ever."""

import pytest

from trainstone.launch import slurm_queue
from trainstone.launch.slurm_queue import Answer, Job, Patience, Silence, explain_hopeless, read_job

LINE = (
    "JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=trainstone-x UserId=me(1) JobState=PENDING Reason=Resources "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:0 NodeList=n[1-2] Comment=x JobState=FAILED"
)


def test_a_line_of_scontrol():
    job = read_job(LINE)
    assert job == Job("12", "PENDING", "Resources", 2, 0, "n[1-2]", 1)
    assert read_job("slurm_load_jobs error") is None
    killed = read_job("JobId=3 JobState=FAILED ExitCode=0:9")
    assert killed is not None
    assert killed.exit_code == 137
    assert killed.task is None


def test_what_never_comes_is_not_waited_for():
    patience, job = Patience(), Job("3", "PENDING", "PartitionNodeLimit")
    assert patience.find_hopeless(job, 0) is None
    why = patience.find_hopeless(job, 30)
    assert why == "PartitionNodeLimit (it asks for more nodes than its partition has up)"
    # It has begun to wait for something else in between.
    assert patience.find_hopeless(job._replace(reason="Resources"), 31) is None
    assert patience.find_hopeless(job, 32) is None
    # One that has worked before is not given up, whatever Slurm says of it now.
    assert patience.find_hopeless(job._replace(restarts=1), 999) is None


def test_too_few_nodes_that_work_are_told_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_queue, "read_states", lambda _partition: {"n1": "idle", "n2": "down*", "n3": "alloc"})
    reason = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
    job = Job("3", "PENDING", reason, partition="gpu", num_nodes=3)
    assert explain_hopeless(job) == "it asks for 3 nodes and 2 of partition gpu can work: n2 is down*"
    assert explain_hopeless(job._replace(num_nodes=2)) is None
    assert explain_hopeless(job._replace(num_nodes=1, wanted="n2")) == "its node n2 is down*"
    assert explain_hopeless(job._replace(num_nodes=1, wanted="n3")) is None


@pytest.mark.parametrize("state", ["boot", "resv", "maint", "pow_up", "pow_dn", "idle$", "down^", "drain@", "idle#"])
def test_a_node_that_comes_back_is_not_lost(monkeypatch: pytest.MonkeyPatch, state: str):
    monkeypatch.setattr(slurm_queue, "read_states", lambda _partition: {"n1": "idle", "n2": state})
    job = Job("3", "PENDING", "ReqNodeNotAvail,_UnavailableNodes:n2", partition="gpu", num_nodes=2)
    assert explain_hopeless(job) is None
    assert explain_hopeless(job._replace(num_nodes=1, wanted="n2")) is None


@pytest.mark.parametrize("reason", ["JobHoldMaxRequeue", "launch_failed_requeued_held"])
def test_one_that_slurm_holds_after_its_starts_never_goes_on(reason: str):
    assert explain_hopeless(Job("3", "PENDING", reason, restarts=4))
    assert explain_hopeless(Job("3", "REQUEUE_HOLD", reason, restarts=4))
    assert explain_hopeless(Job("3", "RUNNING", reason, restarts=4)) is None


def test_a_silent_slurm_is_told_once():
    silence, silent = Silence(), Answer([], "Unable to contact slurm controller")
    assert [silence.note(silent, now) for now in (0, 29)] == [None, None]
    assert silence.note(silent, 31) == "Slurm does not answer: Unable to contact slurm controller"
    assert silence.note(silent, 99) is None
    assert silence.note(Answer([Job("3", "RUNNING")]), 100) is None
    assert [silence.note(silent, now) for now in (101, 110)] == [None, None]
    assert silence.note(silent, 140)
