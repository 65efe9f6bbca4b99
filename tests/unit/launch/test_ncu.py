import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from made_ncu import BEFORE, CYCLES, FMA, FP16, SFU, TENSOR, make_long
from trainstone.errors import DataError, LaunchError, MachineError, RunError, TrainstoneError
from trainstone.launch import ncu as launch
from trainstone.launch import supervisor
from trainstone.launch.ncu import check_permission, choose_metrics, explain_ncu, find_ncu, ncu_command, run_under_ncu
from trainstone.launch.supervisor import Ended
from trainstone.machine.signals import StopSignals
from trainstone.results.profiled import CoreUse
from trainstone.results.progress import Progress

LISTING = """Device NVIDIA RTX A4000 (GA104)
gpc__cycles_elapsed                Counter  cycle   # of cycles elapsed on GPC
sm__inst_executed_pipe_fma         Counter  inst    # of warp instructions executed by fma pipe
sm__inst_executed_pipe_fma_type_fp16 Counter inst   # of ...
sm__pipe_tensor_cycles_active      Counter  cycle   # of cycles where tensor pipe was active
sm__inst_executed_pipe_xu          Counter  inst    # of ...
"""
# Stands for the real one, which is not here: lists metrics, writes the given CSV, prints, ends with the given code.
FAKE = """#!{python}
import json, os, pathlib, subprocess, sys, time
if "--query-metrics" in sys.argv:
    print({listing!r})
    sys.exit(0)
pathlib.Path({arguments!r}).write_text(json.dumps(sys.argv[1:]))
log = sys.argv[sys.argv.index("--log-file") + 1]
if {csv!r} is not None:
    pathlib.Path(log).write_text({csv!r})
print({output!r})
if {failure!r}:
    place = pathlib.Path(os.environ["TRAINSTONE_RUN"]) / "launch/failed-rank0000.json"
    place.write_text(json.dumps({failure!r}))
sys.stdout.flush()
if {sleep}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path({pid!r}).write_text(str(child.pid))
    child.wait()
    pathlib.Path({pid!r} + ".waited").write_text("")
sys.exit({code})
"""


class Fake:
    """A fake ncu in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, folder / "ncu"
        self.arguments, self.pid, self.csv = folder / "arguments.json", folder / "pid", folder / "trace/cores.csv"
        monkeypatch.setattr(launch, "check_permission", lambda: None)
        monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.05)

    def write(
        self,
        csv: str | None,
        *,
        code: int = 0,
        output: str = "",
        failure: dict | None = None,
        listing: str = LISTING,
        sleep: bool = False,
    ) -> None:
        text = FAKE.format(
            python=sys.executable,
            csv=csv,
            code=code,
            output=output,
            failure=failure,
            listing=listing,
            sleep=sleep,
            arguments=str(self.arguments),
            pid=str(self.pid),
        )
        self.path.write_text(text)
        self.path.chmod(0o755)

    def run(self) -> tuple[list[Progress], CoreUse]:
        progress: list[Progress] = []
        with StopSignals() as signals:
            running = self.start(signals, start=5, iterations=2)
            while True:
                try:
                    progress.append(next(running))
                except StopIteration as done:
                    return progress, done.value

    def start(self, signals: StopSignals, *, start: int = 0, iterations: int = 1):
        config, out, tool = self.folder / "config.toml", self.folder / "out", str(self.path)
        return run_under_ncu(config, out, self.csv, start=start, iterations=iterations, signals=signals, ncu=tool)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def test_the_command_line_argument_for_argument():
    command = ncu_command(
        "/opt/ncu",
        Path("runs/x/config.toml"),
        Path("runs/x/points"),
        Path("runs/x/trace/cores.csv"),
        start=10,
        iterations=3,
        metrics=[CYCLES, FMA],
    )
    assert command == [
        "/opt/ncu",
        *("--csv", "--print-units", "base", "--target-processes", "all", "--profile-from-start", "off"),
        *("--metrics", f"{CYCLES},{FMA}", "--log-file", "runs/x/trace/cores.csv"),
        *(sys.executable, "-P", "-m", "trainstone", "bench", "runs/x/config.toml"),
        *("--iterations", "13", "--set", "measure.profiler_range=[10,3]"),
        *("--quiet", "--out", "runs/x/points"),
    ]


def test_a_run_gives_the_use_of_the_cores(fake: Fake):
    fake.write(BEFORE + make_long(), output='{"run_id": "x"}')
    progress, use = fake.run()
    assert use.pipes_percent["fma"] == pytest.approx((1016888 * 40.25 + 3000 * 1.5) / 1020000)
    assert (use.kernels, use.file) == (3, str(fake.csv))
    assert progress[0].phase == "asking ncu which metrics this GPU has"
    assert f"{CYCLES},{FMA},sm__inst_executed_pipe_fma_type_fp16.avg" in fake.arguments.read_text()


def test_an_old_file_does_not_pass_for_the_runs(fake: Fake):
    fake.write(None)
    fake.csv.parent.mkdir()
    fake.csv.write_text(make_long())
    with pytest.raises(MachineError, match="ncu has seen no kernel in steps 5 to 6"):
        fake.run()


@pytest.mark.parametrize(
    ("csv", "output", "code", "kind", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user ...\n", "", 1, MachineError, r"\(ERR_NVGPUCTRPERM\)"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user ...\n", "", 0, MachineError, r"\(ERR_NVGPUCTRPERM\)"),
        (None, "==ERROR== ERR_NVGPUCTRPERM - The user ...\n", 1, MachineError, r"\(ERR_NVGPUCTRPERM\)"),
        ("==WARNING== No kernels were profiled.\n", "", 0, MachineError, "has seen no kernel in steps 5 to 6"),
        ("==ERROR== Failed to find metric regex:^sm__x\n", "", 1, MachineError, "ncu: Failed to find metric regex"),
        (None, "==ERROR== Failed to profile: a driver resource was unavailable", 9, MachineError, "driver resource"),
        ("==PROF== Connected\n", "", 0, DataError, "no kernel in .*cores.csv: it says '==PROF== Connected'"),
        (None, "", 3, DataError, "profiling under ncu: ended with exit code 3"),
        (None, "", 77, LaunchError, "profiling under ncu: ended with exit code 77"),
    ],
)
def test_failures_are_explained(
    fake: Fake, csv: str | None, output: str, code: int, kind: type[TrainstoneError], message: str
):
    fake.write(csv, output=output, code=code)
    with pytest.raises(kind, match=message):
        fake.run()


def test_what_bench_says_is_passed_on(fake: Fake, tmp_path: Path):
    told = "==ERROR== The application returned an error code (6).\n"
    failure = {"rank": 0, "host": "x", "exit_code": 6, "message": "out of memory: 3 GB", "hint": "take less"}
    fake.write(told, failure=failure | {"time_seconds": 1.0, "echo": False}, code=6)
    with pytest.raises(RunError, match="profiling under ncu: out of memory: 3 GB") as caught:
        fake.run()
    assert caught.value.hint == "take less"
    killed = explain_ncu(Ended(-9, ""), tmp_path, "==ERROR== The application was killed")
    assert isinstance(killed, LaunchError)
    assert "SIGKILL" in killed.message


def test_hints_lead_on(tmp_path: Path):
    metric = explain_ncu(Ended(1, ""), tmp_path, "==ERROR== Failed to find metric regex:^x")
    assert "CUDA toolkit" in (metric.hint or "")
    taken = explain_ncu(Ended(1, ""), tmp_path, "==ERROR== Profiling failed because a driver resource was unavailable.")
    assert "dcgmi profile --pause" in (taken.hint or "")


def test_a_signal_stops_ncu_and_all_it_started(fake: Fake):
    fake.write(make_long(), sleep=True)

    def ask() -> None:
        for _ in range(200):
            if fake.pid.exists() and fake.pid.read_text():
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(KeyboardInterrupt):
        fake.run()
    asking.join()
    assert_gone(int(fake.pid.read_text()))
    assert not Path(f"{fake.pid}.waited").exists()  # it was ended, and did not end by itself


def test_nothing_is_left_behind_when_nobody_listens_any_more(fake: Fake):
    fake.write(make_long(), sleep=True)
    running = fake.start(StopSignals())
    next(running)
    next(running)
    threading.Timer(0.5, lambda: write_progress(fake)).start()
    assert "step 1" in next(running)
    running.close()
    assert_gone(int(fake.pid.read_text()))
    assert not Path(f"{fake.pid}.waited").exists()  # it was ended, and did not end by itself


def write_progress(fake: Fake) -> None:
    """As the bench under ncu does, when the fake has begun."""
    while not (fake.pid.exists() and fake.pid.read_text()):
        time.sleep(0.05)
    (folder,) = (fake.folder / "out").glob("*/launch")
    (folder / "progress.txt").write_text("step 1\n")


def assert_gone(pid: int) -> None:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # dead; whoever adopted it has not looked yet
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} lives")


def test_ncu_is_found_on_the_path_then_at_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MachineError, match="no ncu on PATH, nor at /usr/local/cuda") as caught:
        find_ncu(tmp_path)
    assert caught.value.exit_code == 4
    assert "nsight-compute" in (caught.value.hint or "")
    nsight = put(tmp_path / "opt/nvidia/nsight-compute/2024.1.0/ncu")
    assert find_ncu(tmp_path) == nsight
    put(tmp_path / "usr/local/cuda-9.2/bin/ncu")
    newest = put(tmp_path / "usr/local/cuda-12.4/bin/ncu")
    assert find_ncu(tmp_path) == newest
    first = put(tmp_path / "bin/ncu")
    assert find_ncu(tmp_path) == first


def put(path: Path) -> str:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("params", "capabilities", "refused"),
    [
        ("RmProfilingAdminOnly: 1", "0000000000000000", True),
        ("RmProfilingAdminOnly: 1", "00000000a80425fb", True),  # root in a container
        ("RmProfilingAdminOnly: 1", "000001ffffffffff", False),
        ("RmProfilingAdminOnly: 1", "0000000000200000", False),
        ("RmProfilingAdminOnly: 0", "0000000000000000", False),
        ("EnableMSI: 1", "0000000000000000", False),
        (None, "0000000000000000", False),
        ("RmProfilingAdminOnly: 1", None, False),
    ],
)
def test_a_missing_permission_is_seen_before_the_start(
    tmp_path: Path, params: str | None, capabilities: str | None, refused: bool
):
    write_lines(tmp_path / "proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295", params)
    write_lines(tmp_path / "proc/self/status", "Name:\tpython", capabilities and f"CapEff:\t{capabilities}")
    if not refused:
        check_permission(tmp_path)
        return
    with pytest.raises(MachineError, match="only administrators") as caught:
        check_permission(tmp_path)
    assert "--cap-add=SYS_ADMIN" in (caught.value.hint or "")


def write_lines(path: Path, first: str, second: str | None) -> None:
    if second:
        path.parent.mkdir(parents=True)
        path.write_text(f"{first}\n{second}\nlast: 0\n")


def test_metrics_are_chosen_that_this_gpu_has():
    percent = ".avg.pct_of_peak_sustained_elapsed"
    assert choose_metrics(LISTING) == [
        CYCLES,
        FMA,
        f"sm__inst_executed_pipe_fma_type_fp16{percent}",
        f"sm__pipe_tensor_cycles_active{percent}",
        SFU,
    ]
    assert choose_metrics("") == [CYCLES, FMA, FP16, TENSOR, SFU]
    assert choose_metrics("==ERROR== No devices\n\n") == [CYCLES, FMA, FP16, TENSOR, SFU]
    without_sfu = "".join(line for line in LISTING.splitlines(keepends=True) if "_xu" not in line)
    assert choose_metrics(without_sfu)[-1] == f"sm__pipe_tensor_cycles_active{percent}"


def test_what_cannot_be_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "check_permission", lambda: None)
    place, tool = (tmp_path / "c.toml", tmp_path, tmp_path / "cores.csv"), str(tmp_path / "none")
    running = run_under_ncu(*place, start=0, iterations=1, signals=StopSignals(), ncu=tool)
    next(running)
    with pytest.raises(MachineError, match=r"cannot run .*none: No such file"):
        next(running)
