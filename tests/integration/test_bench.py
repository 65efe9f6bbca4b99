"""`trainstone bench` on the command line."""

import json
import os
import platform
import pty
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support.processes.command import find_run, narrow_arguments
from support.processes.forked import Nursery, wait_until
from trainstone.results.run_folder import read_result
from trainstone.results.steps import read_columns

TINY = ["bench", *narrow_arguments()]
QUICK = [*TINY, "--iterations", "120"]
BRIEF = [*TINY, "--iterations", "12"]
ENDLESS = [*TINY, "--seconds", "300", "--set", "measure.half_width=1e-9"]
KEYS = {
    "format", "kind", "source", "run_id", "command", "recipe", "config", "machine", "software", "status", "world",
    "devices", "throughput", "step_seconds", "phases", "utilisation", "memory", "noise", "findings", "verdict", "files",
}  # fmt: skip


def test_bench_writes_documented_result_and_folder(trainstone, tmp_path: Path):
    """Includes measured peak and report, in a new process as users start it."""
    done = trainstone(*QUICK, "--json")
    assert done.code == 0, done.err
    result, run = done.json(), find_run(tmp_path)
    assert set(result) >= KEYS
    assert result["status"] == "ok"
    assert set(result["recipe"]) == {"name", "version", "sha256"}
    throughput = result["throughput"]
    assert 20 <= throughput["num_steps"] <= 120
    if throughput["ci_covers"] == "within this run":
        low, high = throughput["ci95"]
        assert low < throughput["images_per_second"] < high
    else:  # very noisy machine: too few independent blocks
        assert throughput["ci_covers"].startswith("not established: ")
        assert "ci95" not in throughput
    assert {"median", "p5", "p95", "p99", "mad", "first"} <= set(result["step_seconds"])
    assert {"train_seconds", "data_wait_seconds", "program_seconds"} <= set(result["phases"])
    assert {"mfu", "flops_per_image", "peak_flops", "peak_source"} <= set(result["utilisation"])
    assert result["memory"]["peak_host_bytes"] > 2**20
    assert result["noise"]["grade"] in "ABC"
    assert result["verdict"].startswith("ResNet-18: ")
    assert result == json.loads((run / "result.json").read_text())
    host = result["process"]["host"]
    assert {path.name for path in run.iterdir()} == {
        "result.json", "config.toml", "machine.json", "steps-rank0000.csv", f"telemetry-{host}-cpu.csv", "log.txt",
        "report.html",
    }  # fmt: skip
    steps = read_columns(run / "steps-rank0000.csv")["step"]
    assert steps.tolist() == list(range(len(steps)))
    telemetry = (run / f"telemetry-{host}-cpu.csv").read_text().splitlines()
    assert telemetry[0].startswith("time_seconds,step,clock_mhz,")
    assert int(telemetry[-1].split(",")[1]) > 0


def test_bench_with_written_config_repeats_losses_bit_for_bit(quick, tmp_path: Path):
    exact = ["--iterations", "6", "--json", "-q"]
    first = quick("bench", *narrow_arguments(), *exact, "--seed", "7")
    assert first.code == 0, first.err
    run = tmp_path / "runs" / first.json()["run_id"]
    second = quick("bench", str(run / "config.toml"), "--json", "-q", "--out", "again")
    assert second.code == 0, second.err
    repeated = tmp_path / "again" / second.json()["run_id"]
    losses, others = (read_columns(r / "steps-rank0000.csv")["loss"].tolist() for r in (run, repeated))
    assert len(losses) == 6
    assert losses == others
    assert first.json()["recipe"] == second.json()["recipe"]


def test_bench_split_phases_sum_to_train_seconds(quick):
    result = quick(*BRIEF, "--json", "-q", "--set", "engine.split_phases=true").json()
    phases = result["phases"]
    parts = phases["forward_seconds"] + phases["backward_seconds"] + phases["optimizer_seconds"]
    assert parts + phases["data_wait_seconds"] == pytest.approx(phases["train_seconds"], rel=0.02)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_bench_keep_memory_reduces_page_faults(trainstone):
    """The first activations have 42 MB: glibc keeps at most 32 MiB, so they cause page faults in every step."""
    large = ("train.batch_size=32", "data.image_size=288")
    settings = [*TINY, *(part for setting in large for part in ("--set", setting))]
    settings += ["--iterations", "8", "--json", "-q"]
    kept = trainstone(*settings).json()["memory"]
    given_back = trainstone(*settings, "--set", "engine.keep_memory=false").json()["memory"]
    assert "keeps freed memory" in kept["allocator"]
    assert "default" in given_back["allocator"]
    assert kept["page_faults_per_step"] < 0.5 * given_back["page_faults_per_step"]


def test_bench_runs_gives_interval_between_runs(quick, tmp_path: Path):
    done = quick(*TINY, "--iterations", "20", "--runs", "3", "--seed", "4", "--json")
    assert done.code == 0, done.err
    result = done.json()
    run = tmp_path / "runs" / result["run_id"]
    children = [json.loads((run / point["run"] / "result.json").read_text()) for point in result["points"]]
    assert [child["config"]["seed"] for child in children] == [4, 5, 6]
    rates = [child["throughput"]["images_per_second"] for child in children]
    assert result["throughput"]["images_per_second"] == pytest.approx(sum(rates) / 3)
    assert result["throughput"]["ci_covers"] == "between runs"
    assert len({child["recipe"]["sha256"] for child in children}) == 1
    assert "run 3 of 3" in done.err


@pytest.mark.parametrize(
    ("setting", "code"), [("optimizer.learning_rate=1e30", "run-failed"), ("train.batch_size=1000000", "out-of-memory")]
)
def test_bench_failure_is_recorded_in_run_folder(quick, tmp_path: Path, setting: str, code: str):
    done = quick(*QUICK, "--set", setting)
    assert done.code == 6
    result = read_result(find_run(tmp_path))
    assert (result.status, result.findings[-1].code) == ("failed", code)
    assert result.findings[-1].message in " ".join(done.err.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_bench_stopped_or_killed_keeps_measured_steps(nursery: Nursery, tmp_path: Path, number: signal.Signals):
    child = nursery.start(*ENDLESS, cwd=tmp_path)
    steps = "runs/*/steps-rank0000.csv"
    wait_until(lambda: any(len(path.read_text().splitlines()) > 5 for path in tmp_path.glob(steps)))
    child.send(number)
    ended, run = child.wait(), find_run(tmp_path)
    result = read_result(run)
    assert len(read_columns(run / "steps-rank0000.csv")["step"]) > 4
    assert not list(run.glob("*.partial"))
    if number == signal.SIGKILL:
        assert (ended.code, result.status) == (-signal.SIGKILL, "killed")
        return
    assert (ended.code, result.status) == (130, "interrupted"), ended.err
    assert result.throughput is not None
    assert f"stopped by {number.name}" in ended.out
    assert "Traceback" not in ended.err


def test_bench_runs_ctrl_c_stops_all_runs(nursery: Nursery, tmp_path: Path):
    child = nursery.start(*ENDLESS, "--runs", "3", cwd=tmp_path)
    wait_until(lambda: any(tmp_path.glob("runs/*/points/*/steps-rank0000.csv")))
    os.killpg(child.pid, signal.SIGINT)
    ended = child.wait()
    assert ended.code == 130, ended.err
    result = read_result(find_run(tmp_path))
    assert result.status == "interrupted"
    assert result.points == []  # a shortened run is not counted
    assert result.findings[-1].message == "stopped by SIGINT after 0 of 3 runs"
    (point,) = (find_run(tmp_path) / "points").iterdir()
    assert read_result(point).status == "interrupted"


def run_in_terminal(nursery: Nursery, folder: Path, *arguments: str, **variables: str) -> str:
    controller, terminal = pty.openpty()
    environment = {"TERM": "xterm-256color", "COLUMNS": "60", **variables}
    child = nursery.start(*arguments, cwd=folder, env=environment, terminal=os.ttyname(terminal))
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # on Linux reading at the end of a terminal is an error
        while part := os.read(controller, 65536):
            shown += part
    os.close(controller)
    assert child.wait().code == 0, shown
    return shown.decode()


def test_bench_in_terminal_has_colour_and_live_line_unless_no_color(nursery: Nursery, tmp_path: Path):
    shown = run_in_terminal(nursery, tmp_path, *BRIEF)
    assert "\x1b[33mwarning" in shown or "\x1b[36minfo" in shown
    assert "fitting the recipe to this machine\r" in shown  # overwritten: a live line
    plain = run_in_terminal(nursery, tmp_path, *BRIEF, NO_COLOR="1")
    assert "ResNet-18" in plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)


def test_bench_works_in_terminal_without_unicode(quick):
    done = quick(*BRIEF, "-q", env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0, done.err
    assert "ResNet-18" in done.out


@pytest.mark.serial
def test_bench_default_recipe(trainstone):
    done = trainstone("bench", "--seconds", "10", "--json", "--device", "cpu")
    assert done.code == 0, done.err
    result = done.json()
    assert set(result) >= KEYS
    assert result["config"]["model"]["depth"] == 50
    assert result["utilisation"]["flops_per_image"] == pytest.approx(24.3e9, rel=0.01)
    assert 0 < result["utilisation"]["mfu"] < 1.5
    assert "auto" not in {result["config"]["train"][key] for key in ("batch_size", "precision")}


# Used with an empty compiler cache.
COMPILED = [*TINY, "--iterations", "8", "--json", "-q", "--set", "engine.compile=true"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_bench_reports_compile_time_separately(quick, tmp_path: Path):
    # Compiling is faster without vector instructions.
    again = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "ATEN_CPU_CAPABILITY": "default"}
    done = quick(*COMPILED, env=again)
    assert done.code == 0, done.err
    result = done.json()
    steps, phases = result["step_seconds"], result["phases"]
    assert phases["compile_seconds"] == pytest.approx(steps["first"] - steps["median"])
    assert phases["compile_seconds"] > 20 * steps["median"]
    assert result["throughput"]["steady_from_step"] >= 1


@pytest.mark.slow
def test_bench_compile_without_compiler_gives_hint(quick, tmp_path: Path):
    nothing = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    done = quick(*COMPILED, env=nothing)
    assert done.code == 4
    assert done.err.startswith("error: torch.compile does not work here: ")
    assert "hint:  --set engine.compile=false" in done.err
    assert len(done.err.splitlines()) == 2
