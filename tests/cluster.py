"""A real Slurm with two nodes on this host, for tests: munge, a controller and two slurmd with ports of their own.

Nodes n1 and n2 have two cores each; jobs of partition urgent send those of partition batch back into the queue.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command import LIMIT, find_free_port
from nursery import wait_until

NODES = ("n1", "n2")
GRACE_SECONDS = 60
"""That a job has from its first signal to its end; far more than a checkpoint takes on a busy host."""
# Names of nodes are Slurm's own: no name service of this host knows them.
MEET_HERE = "export MASTER_ADDR=127.0.0.1"
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credential of its last start is void: two minutes, unless said here.
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


@contextmanager
def start_cluster(folder: Path) -> Iterator[Cluster]:
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
    # --force: the folders of tests may be open to more users than munge likes.
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
