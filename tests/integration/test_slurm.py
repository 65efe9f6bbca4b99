"""Tests of `trainstone launch slurm` on a real Slurm with two nodes: results, requeues, killed ranks, fleets, errors.

Munge, a controller and two slurmd with their own ports run on this host. Nodes n1 and n2 have two cores each; jobs of
partition urgent preempt and requeue those of partition batch.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.builders.training_runs import TrainedRun, assert_same, assert_trained_alike, read_trained_run
from support.processes.command import LIMIT, find_free_port, find_run
from support.processes.forked import Nursery, wait_until
from support.processes.launches import STEPS, find_step, finish, start_launch, train_words, wait_for_training
from trainstone.results.run_folder import read_result

pytestmark = pytest.mark.slow

# Below the accuracy of a random guess among ten classes.
LOW_TARGET = {"eval__target": 0.05}
ENDLESS = {"stop__epochs": 1000.0}
Launch = Callable[..., subprocess.Popen[str]]
NODES = ("n1", "n2")
GRACE_SECONDS = 60
"""Time of a job between its first signal and SIGKILL; far more than a checkpoint takes on a busy host."""
# The node names exist only in Slurm; the host cannot resolve them.
LOCAL_MASTER = "export MASTER_ADDR=127.0.0.1"
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credential of its last start expires; the default is two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,default_queue_depth=20,sched_min_interval=100000
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=600
SlurmdTimeout=20
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        environment = os.environ | self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def is_idle(self) -> bool:
        words = ["sinfo", "-h", "-N", "-p", "batch", "-o", "%t"]
        done = subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True)
        return done.stdout.split() == ["idle"] * len(NODES)

    def job(self, job: str) -> dict[str, str]:
        words = self.run("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def clear(self) -> None:
        self.run("scancel", "--user=root")
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        wait_until(lambda: not self.run("squeue", "-h").strip())
        for node in NODES:
            if "idle" not in self.run("sinfo", "-h", "-n", node, "-o", "%t"):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_until(self.is_idle)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    folders = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    programs = {name: shutil.which(name, path=folders) or "" for name in ("munged", "slurmctld", "slurmd", "sbatch")}
    if not all(programs.values()) or os.geteuid():
        pytest.skip("needs slurm-wlm and munge")
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    host = os.uname().nodename.partition(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={find_free_port()} CPUs=2 RealMemory=1000"
        for node in NODES
    )
    text = CONFIG.format(host=host, controller_port=find_free_port(), folder=folder, nodes=nodes, grace=GRACE_SECONDS)
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    places = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
    places |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    # --force: the test folders may have wider permissions than munge accepts.
    munge = [programs["munged"], "--foreground", "--force", *(f"--{name}={folder / places[name]}" for name in places)]
    cluster = Cluster(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= cluster.environment
    commands = [[programs["slurmctld"], "-D", "-i"], *([programs["slurmd"], "-D", "-N", node] for node in NODES)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate([munge, *commands]):
            with (folder / f"daemon-{number}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder))
            wait_until((folder / "munge.socket").exists)  # the others need it
        wait_until(cluster.is_idle)
        yield cluster
        cluster.clear()
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clear()


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, verb: list[str]) -> subprocess.Popen[str]:
        words = ("slurm", "--prologue", LOCAL_MASTER, *options, "--", *verb)
        started.append(start_launch(tmp_path, *words, env=cluster.environment))
        return started[-1]

    yield start
    for launched in started:
        if launched.poll() is None:
            launched.kill()
            launched.communicate()


def train_directly(nursery: Nursery, name: str, **changes: Any) -> TrainedRun:
    out = nursery.folder / name
    assert nursery.run(*train_words(out, **changes), world=2).code == 0
    return read_trained_run(find_run(out), 2)


def find_ranks(out: Path) -> dict[int, psutil.Process]:
    """Find the ranks running below a folder, without srun and the job script, which have no SLURM_STEP_NUM_TASKS."""
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if f"{environment.get('TRAINSTONE_RUN')}/".startswith(f"{out}/") and "SLURM_STEP_NUM_TASKS" in environment:
                found.setdefault(int(environment["SLURM_PROCID"]), process)
        except (OSError, psutil.Error):
            continue
    return found


def wait_for_line(launched: subprocess.Popen[str], text: str) -> None:
    assert launched.stderr is not None
    assert any(text in line for line in launched.stderr)


def find_job(cluster: Cluster) -> str:
    (job,) = cluster.run("squeue", "-h", "-o", "%i").split()
    return job


def test_slurm_two_nodes_equal_two_local_ranks(tmp_path: Path, cluster: Cluster, launch: Launch, nursery: Nursery):
    out = tmp_path / "runs"
    output, errors = finish(launch("--nodes", "2", verb=train_words(out, **LOW_TARGET)), 0)
    assert "reached" in output
    assert "is running on n[1-2]" in errors
    assert "2 ranks on 2 hosts connected at 127.0.0.1:" in errors
    trained = read_trained_run(find_run(out), 2)
    assert trained.result.status == "target_reached"
    assert (trained.result.world.ranks, trained.result.world.nodes) == (2, 2)
    assert_same(trained, train_directly(nursery, "to-target", **LOW_TARGET))


def test_slurm_requeued_job_and_killed_rank_give_same_result(
    tmp_path: Path, cluster: Cluster, launch: Launch, nursery: Nursery
):
    out = tmp_path / "runs"
    launched = launch("--nodes", "2", "--requeue", "--max-restarts", "1", verb=train_words(out))
    wait_for_training(out)
    # Suspended until Slurm continues them for the signal, so that they cannot finish before it.
    for rank in find_ranks(out).values():
        rank.suspend()
    job = find_job(cluster)
    script = tmp_path / "urgent.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    cluster.run("sbatch", "-p", "urgent", "-N2", "--ntasks-per-node=2", "-o", "/dev/null", str(script))
    wait_until(lambda: cluster.job(job)["Restarts"] == "1")
    wait_for_training(out, find_step(out) + 1)
    cluster.run("scancel", "--signal=USR1", job)
    wait_until(lambda: cluster.job(job)["Restarts"] == "2")
    wait_for_training(out, find_step(out) + 1)
    find_ranks(out)[1].kill()
    _, errors = finish(launched, 0)
    assert "is pending (start 2): BeginTime" in errors
    assert "is running on n[1-2] (start 3)" in errors
    trained = read_trained_run(find_run(out), 2)
    assert trained.document["step"] == STEPS
    assert trained.result.quality is not None
    assert trained.result.quality.starts == 4
    assert_trained_alike(trained, train_directly(nursery, "undisturbed"))


def test_slurm_killed_rank_is_reported_with_node(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    launched = launch("--nodes", "2", verb=[*train_words(out, **ENDLESS), "-q"])
    wait_for_training(out)
    find_ranks(out)[1].kill()
    _, errors = finish(launched, 5)
    assert errors.startswith("error: rank 1 on n2 was ended by SIGKILL\n")
    assert errors.count("error:") == 1
    wait_until(lambda: not find_ranks(out))
    result = read_result(find_run(out))
    assert result.status == "failed"
    assert [one.code for one in result.findings if one.severity == "error"] == ["rank-failed"]


def test_slurm_fleet_has_one_run_per_node(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    output, errors = finish(launch("--fleet", verb=train_words(out, stop__epochs=1.0)), 0)
    assert "0 of 2 nodes done" in errors
    fleet = find_run(out)
    assert {path.name for path in fleet.iterdir()} == {"launch", "n1", "n2"}
    for node in ("n1", "n2"):
        assert f"\n{node} " in output
        result = read_result(fleet / node)
        assert result.status == "target_missed"
        assert [device.host for device in result.devices] == [node]


def test_slurm_detached_job_runs_and_cancelled_job_is_not_requeued(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    output, _ = finish(launch("--requeue", "--detach", verb=train_words(out, **ENDLESS)), 0)
    (run,) = out.iterdir()
    job = find_job(cluster)
    assert output == f"job  {job}\nrun  {run}\n"
    wait_for_training(out)
    cluster.run("scancel", job)
    wait_until(lambda: not cluster.run("squeue", "-h", "-j", job).strip())
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert read_result(run).status == "interrupted"


def test_slurm_fleet_reports_failed_node_and_keeps_others(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    launched = launch("--fleet", verb=train_words(out, **ENDLESS))
    wait_until(lambda: len(list(out.glob("*/n?/checkpoints/step-*.safetensors"))) >= 2)
    fleet = find_run(out)
    find_ranks(fleet / "n2")[0].kill()
    wait_until(lambda: len(cluster.run("squeue", "-h", "-o", "%i").split()) == 1)
    cluster.run("scancel", "--signal=USR1", find_job(cluster))
    output, errors = finish(launched, 5)
    assert "error: 1 of 2 nodes failed\n       n2: rank 0 on n2 was ended by SIGKILL\n" in errors
    assert errors.count("error:") == 1
    assert [line.split()[-1] for line in output.splitlines()[1:3]] == ["interrupted", "failed"]


def test_slurm_pending_job_shows_reason_and_survives_ctrl_c(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    interrupted = launch("--nodes", "2", verb=train_words(out))
    wait_for_line(interrupted, "is pending: Nodes_required_for_job_are_DOWN")
    job = find_job(cluster)
    interrupted.send_signal(signal.SIGINT)
    _, errors = finish(interrupted, 130)
    assert f"job {job} continues; cancel it with: scancel {job} · run folder: {find_run(out)}\n" in errors
    assert find_job(cluster) == job
    cluster.run("scancel", job)
    launched = launch("--nodes", "3", verb=train_words(tmp_path / "cancelled"))
    wait_for_line(launched, "is pending: PartitionConfig; cancel it with: scancel")
    job = find_job(cluster)
    cluster.run("scancel", job)
    _, errors = finish(launched, 5)
    assert f"error: Slurm ended job {job}: CANCELLED, it was cancelled\n" in errors
    assert [path.name for path in sorted((find_run(tmp_path / "cancelled") / "launch").iterdir())] == [
        *("cause.txt", "job.sh"),
    ]


def test_slurm_rejected_job_is_one_error_without_run_folder(tmp_path: Path, cluster: Cluster, launch: Launch):
    out = tmp_path / "runs"
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    verb = train_words(out)
    for message, options in {
        "Slurm rejected the job: invalid partition specified: nope": ["--partition", "nope"],
        "Slurm rejected the job: Invalid generic resource": ["--fleet", "--gres", "gpu:1"],
        "unknown Slurm partition: nope": ["--partition", "nope", "--fleet"],
    }.items():
        _, errors = finish(launch(*options, verb=verb), 5)
        assert message in errors
        assert errors.count("error:") == 1
    assert not list(out.glob("*"))
    assert not cluster.run("squeue", "-h").strip()
    dry, _ = finish(launch("--dry-run", verb=verb), 0)
    assert dry.startswith("#!/bin/bash -l\n")
    dry, errors = finish(launch("--fleet", "--dry-run", verb=verb), 0)
    assert "nodes=(n1)\n" in dry
    assert errors == "skipped: n2 (drain)\n"
