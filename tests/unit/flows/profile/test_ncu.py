import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.builders.machines import make_tree
from support.builders.ncu_files import BEFORE, CYCLES, FMA, FP16, PERCENT, SFU, TENSOR, make_long
from support.processes.flows import drain
from support.processes.forked import wait_until
from trainstone.errors import DataError, LaunchError, MachineError, TrainstoneError
from trainstone.flows.profile import ncu as launch
from trainstone.flows.profile.ncu import check_permission, choose_metrics, find_ncu, run_under_ncu
from trainstone.machine import supervisor
from trainstone.machine.signals import StopSignals
from trainstone.results.schema.timeline import CoreUse

LISTING = """Device NVIDIA RTX A4000 (GA104)
gpc__cycles_elapsed                Counter  cycle   # of cycles elapsed on GPC
sm__inst_executed_pipe_fma         Counter  inst    # of warp instructions executed by fma pipe
sm__inst_executed_pipe_fma_type_fp16 Counter inst   # of ...
sm__pipe_tensor_cycles_active      Counter  cycle   # of cycles where tensor pipe was active
sm__inst_executed_pipe_xu          Counter  inst    # of ...
"""
# A fake ncu: lists metrics, writes the given CSV, prints, exits with the given code.
FAKE = """#!{python}
import json, os, pathlib, subprocess, sys
if "--query-metrics" in sys.argv:
    print({listing!r})
    sys.exit(0)
folder = pathlib.Path({folder!r})
(folder / "arguments.json").write_text(json.dumps([os.environ["LC_ALL"], *sys.argv[1:]]))
if {csv!r} is not None:
    pathlib.Path(sys.argv[sys.argv.index("--log-file") + 1]).write_text({csv!r})
print({output!r}, flush=True)
if {failure!r}:
    (pathlib.Path(os.environ["TRAINSTONE_RUN"]) / "launch/failed-rank0000.json").write_text(json.dumps({failure!r}))
if {sleep}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "pid").write_text(str(child.pid))
    child.wait()
    (folder / "waited").write_text("")
if {code} < 0:
    os.kill(os.getpid(), -({code}))
sys.exit({code})
"""


class Fake:
    """A fake ncu on PATH, and the run folder that it writes to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, folder / "bin/ncu"
        self.pid, self.csv = folder / "pid", folder / "trace/ncu.csv"
        self.path.parent.mkdir()
        monkeypatch.setenv("PATH", str(self.path.parent))
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        monkeypatch.setattr(launch, "check_permission", lambda: None)
        monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.05)

    def write(self, csv: str | None, **changes: Any) -> None:
        given = {"python": sys.executable, "csv": csv, "folder": str(self.folder), "listing": LISTING}
        given |= {"code": 0, "output": "", "failure": None, "sleep": False}
        self.path.write_text(FAKE.format(**(given | changes)))
        self.path.chmod(0o755)

    def run(self) -> CoreUse:
        with StopSignals() as signals:
            return drain(run_under_ncu(self.folder, 5, 2, signals))[1]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def test_run_under_ncu_returns_core_use(fake: Fake):
    fake.write(BEFORE + make_long(), output='{"run_id": "x"}')
    use = fake.run()
    assert use.pipes_percent["fma"] == pytest.approx((1016888 * 40.25 + 3000 * 1.5) / 1020000)
    assert (use.kernels, use.file) == (3, "trace/ncu.csv")
    metrics = (
        f"{CYCLES},{FMA},sm__inst_executed_pipe_fma_type_fp16{PERCENT},sm__pipe_tensor_cycles_active{PERCENT},{SFU}"
    )
    assert json.loads((fake.folder / "arguments.json").read_text()) == [
        *("C", "--csv", "--print-units", "base", "--target-processes", "all", "--profile-from-start", "off"),
        *("--metrics", metrics, "--log-file", str(fake.csv)),
        *(sys.executable, "-P", "-m", "trainstone", "bench", str(fake.folder / "config.toml")),
        *("--iterations", "7", "--set", "measure.profiler_range=[5,2]"),
        *("--quiet", "--out", str(fake.folder / "points")),
    ]


DENIED = "==ERROR== ERR_NVGPUCTRPERM - The user ...\n"


@pytest.mark.parametrize(
    ("csv", "output", "code", "kind", "message", "hint"),
    [
        (DENIED, "", 1, MachineError, r"\(ERR_NVGPUCTRPERM\)", "run as root"),
        (DENIED, "", 0, MachineError, r"\(ERR_NVGPUCTRPERM\)", "run as root"),
        (None, DENIED, 1, MachineError, r"\(ERR_NVGPUCTRPERM\)", "run as root"),
        (None, "", 0, MachineError, "ncu recorded no kernel in steps 5 to 6", "CUDA device"),
        ("==WARNING== No kernels were profiled.\n", "", 0, MachineError, "no kernel in steps 5 to 6", "CUDA device"),
        ("==ERROR== Failed to find metric regex:^sm__x\n", "", 1, MachineError, "ncu: Failed to find", "CUDA toolkit"),
        (None, "==ERROR== a driver resource was unavailable", 9, MachineError, "resource", "dcgmi profile --pause"),
        ("==PROF== Connected\n", "", 0, DataError, "ncu.csv: no kernel found; it contains '==PROF== Conn", "ncu --csv"),
        (None, "", 3, DataError, "profiling under ncu: ended with exit code 3", ""),
        (None, "", 77, LaunchError, "profiling under ncu: ended with exit code 77", ""),
        (None, "==ERROR== The application was killed", -9, LaunchError, "SIGKILL", "memory"),
    ],
)
def test_run_under_ncu_explains_failures(
    fake: Fake, csv: str | None, output: str, code: int, kind: type[TrainstoneError], message: str, hint: str
):
    fake.write(csv, output=output, code=code)
    make_tree(fake.folder, {"trace/ncu.csv": make_long()})  # an old file must not be read
    with pytest.raises(kind, match=message) as caught:
        fake.run()
    assert hint in (caught.value.hint or "")


def test_signal_stops_ncu_and_its_children(fake: Fake):
    fake.write(make_long(), sleep=True)

    def stop() -> None:
        wait_until(lambda: fake.pid.exists() and bool(fake.pid.read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(KeyboardInterrupt):
        fake.run()
    stopping.join()
    assert not (fake.folder / "waited").exists()  # the child was killed
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(fake.pid.read_text()))
        # Its new parent may not have reaped it yet.
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_find_ncu_searches_path_then_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MachineError, match="ncu not found on PATH or at /usr/local/cuda") as caught:
        find_ncu(tmp_path)
    assert caught.value.exit_code == 4
    assert "nsight-compute" in (caught.value.hint or "")
    for place in ("opt/nvidia/nsight-compute/2024.1.0", "usr/local/cuda-11.8/bin", "usr/local/cuda-12.4/bin", "bin"):
        (make_tree(tmp_path, {f"{place}/ncu": "#!/bin/sh\n"}) / place / "ncu").chmod(0o755)
        assert find_ncu(tmp_path) == f"{tmp_path}/{place}/ncu"


@pytest.mark.parametrize(
    ("params", "capabilities", "refused"),
    [
        ("RmProfilingAdminOnly: 1", "0000000000000000", True),
        ("RmProfilingAdminOnly: 1", "00000000a80425fb", True),  # root in a container
        ("RmProfilingAdminOnly: 1", "000001ffffffffff", False),
        ("RmProfilingAdminOnly: 0", "0000000000000000", False),
        (None, "0000000000000000", False),
        ("RmProfilingAdminOnly: 1", None, False),
    ],
)
def test_check_permission_refuses_admin_only_counters(
    tmp_path: Path, params: str | None, capabilities: str | None, refused: bool
):
    if params:
        make_tree(tmp_path, {"proc/driver/nvidia/params": f"ResmanDebugLevel: 4294967295\n{params}\nlast: 0\n"})
    if capabilities:
        make_tree(tmp_path, {"proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities}\nlast: 0\n"})
    if not refused:
        check_permission(tmp_path)
        return
    with pytest.raises(MachineError, match="only administrators") as caught:
        check_permission(tmp_path)
    assert "--cap-add=SYS_ADMIN" in (caught.value.hint or "")


def test_choose_metrics_selects_metrics_of_this_gpu(fake: Fake):
    for listing in ("", "==ERROR== No devices\n\n"):
        fake.write(None, listing=listing)
        assert choose_metrics(str(fake.path)) == [CYCLES, FMA, FP16, TENSOR, SFU]
    fake.write(None, listing="".join(line for line in LISTING.splitlines(keepends=True) if "_xu" not in line))
    assert choose_metrics(str(fake.path))[-1] == f"sm__pipe_tensor_cycles_active{PERCENT}"


def test_ncu_that_cannot_run_is_reported(fake: Fake):
    fake.path.write_text("#!/nowhere/python\n")
    fake.path.chmod(0o755)
    with pytest.raises(MachineError, match=r"cannot run .*ncu: No such file"):
        fake.run()
