"""`trainstone profile` on the command line."""

import gzip
import json
import signal
from pathlib import Path

from support.processes.command import find_run, tiny_arguments
from support.processes.forked import Nursery, wait_until
from trainstone.formats.kineto import read_trace
from trainstone.results.run_folder import read_result

PROFILE = ("profile", *tiny_arguments(), "--start", "6", "--iterations", "2", "--out", "runs")


def test_profile_writes_terminal_summary_result_and_trace(quick, tmp_path: Path):
    # Long steps, so that noise between the marks is a negligible share.
    done = quick(*PROFILE, "--set", "data.image_size=96", with_report=True)
    assert done.code == 0, done.err
    run = find_run(tmp_path)
    assert "operators run for " in done.out
    for row in ("breakdown ", "busy ", "profiler ", "operators ", "roofline ", "trace "):
        assert f"\n  {row}" in done.out
    assert "steps 6 to 7 were profiled" in " ".join(done.out.split())
    assert str(run / "report.html") in done.out or "report.html" in done.out
    timeline = read_result(run).timeline
    assert timeline is not None
    assert timeline.accounted_share >= 0.97
    assert [step.step for step in timeline.steps] == [6, 7]
    assert timeline.roofline is not None
    assert timeline.overhead is not None
    trace = run / "trace" / "rank0000.json.gz"  # for Perfetto
    document = json.loads(gzip.decompress(trace.read_bytes()))
    assert document["distributedInfo"] == {"rank": 0, "world_size": 1}
    marks = {event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"}
    assert {"ProfilerStep#6", "ProfilerStep#7", "data", "forward", "backward", "optimizer"} <= marks
    assert read_trace(trace).rank == 0


def test_profile_nvtx_on_cpu_is_switched_off(quick, tmp_path: Path):
    done = quick(*PROFILE, "--nvtx", "--json", "--set", "engine.split_phases=true")
    assert done.code == 0, done.err
    assert done.json()["timeline"]["steps"][0]["step"] == 6
    result = read_result(find_run(tmp_path))
    assert "engine-adapted" in [found.code for found in result.findings]


def test_profile_ctrl_c_exits_with_130(nursery: Nursery, tmp_path: Path):
    child = nursery.start("profile", *tiny_arguments(), "--start", "100000", "--out", "runs", cwd=tmp_path)
    wait_until(lambda: any(file.stat().st_size > 500 for file in tmp_path.glob("runs/*/steps-rank0000.csv")))
    child.send(signal.SIGINT)
    done = child.wait()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert read_result(find_run(tmp_path)).status == "interrupted"
