"""`trainstone sweep` on the command line: a complete sweep, and sweeps that are killed, stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.builders.sweeps import write_fake_result
from support.processes.command import LIMIT, ROOT, Finished, tiny_arguments
from support.processes.forked import wait_until
from trainstone.formats.timehistory import read_timehistory
from trainstone.results.run_folder import read_result
from trainstone.results.schema.run import Result

SWEEP = ("sweep", "--batch-sizes", "1,2,4,8", "--seed", "3", "--set", "device=cpu")
ORDER = (8, 1, 4, 2)
"""Running order of these batch sizes with this seed."""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen]:
    template = write_fake_result(tmp_path.parent)

    def run(*arguments: str, **happens: str) -> subprocess.Popen:
        table = {name.removeprefix("batch_"): action for name, action in happens.items()}
        environment = {**os.environ, "FAKE_POINTS": json.dumps(table), "FAKE_RESULT": str(template)}
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/processes/fake_sweep.py"), *(arguments or SWEEP)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def wait(child: subprocess.Popen) -> Finished:
    with child:
        out, err = child.communicate(timeout=LIMIT)
    return Finished(child.returncode, out, err)


def find_sweep(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def list_points(run: Path) -> list[Result]:
    return [read_result(path) for path in sorted((run / "points").iterdir())]


def find_running(folder: Path) -> int:
    (point,) = (point for point in list_points(find_sweep(folder)) if point.status == "running")
    return point.process.pid


def wait_for_points(folder: Path, number: int) -> None:
    wait_until(lambda: len(list(folder.glob("runs/*/points/*/result.json"))) == number)


@pytest.mark.slow
def test_sweep_writes_complete_result(trainstone, quick, tmp_path: Path):
    requested = ("--batch-sizes", "2,8,1000000", "--set", "measure.iterations=20")
    done = trainstone("sweep", *tiny_arguments(), *requested, env={"COLUMNS": "120"})
    assert done.code == 0, done.err
    run = find_sweep(tmp_path)
    result = read_result(run)
    assert (result.kind, result.status) == ("sweep", "ok")
    assert [row.status for row in result.sweep.rows] == ["ok", "ok", "out_of_memory"]
    assert "train.batch_size = 1000000 needs about" in result.sweep.rows[-1].note
    assert re.match(r"ResNet-18: (knee at|no knee up to) batch ", result.verdict)
    assert {row.images_per_step for row in result.sweep.rows} == {2, 8, None}
    assert all(row.mfu and row.memory_bytes for row in result.sweep.rows[:2])
    assert all((run / point.run / "report.html").is_file() for point in result.points[:2])
    page = (run / "report.html").read_text()
    assert "Sweep over batch" in page
    assert "out of memory" in page
    for size in (2, 8):
        log = read_timehistory(run / f"original/throughput_data/batch_{size}.log")
        assert [(one.first_step, one.last_step) for one in log] == [(0, 10), (10, 20)]
        assert log[1].seconds > 0
    assert "point 1 of 3: batch " in done.err
    assert "out of memory" in done.out
    assert re.search(r"Out of memory: batch 1000000 does not fit\.", " ".join(done.out.split()))
    last = done.out.strip().splitlines()[-1]
    assert last == f"repeat  trainstone sweep {run.relative_to(tmp_path)}/config.toml --batch-sizes 2,8,1000000"
    refused = quick("compare", str(run), "--to", str(run / result.points[0].run))
    assert refused.code == 7
    assert "the points of a sweep have different settings" in refused.err


def resume(run: Path, *arguments: str) -> tuple[str, ...]:
    return ("sweep", "--resume", str(run), *arguments)


def test_sweep_killed_is_resumed(start, tmp_path: Path):
    child = start(batch_4="slow")
    wait_for_points(tmp_path, 3)
    run = find_sweep(tmp_path)
    wait_until(lambda: len(read_result(run).sweep.rows) == 2)
    child.send_signal(signal.SIGKILL)
    assert wait(child).code == -signal.SIGKILL
    killed = read_result(run)
    assert killed.status == "killed"
    assert [row.value for row in killed.sweep.rows] == [1, 8]
    assert killed.verdict.endswith("(2 of 4 points)")
    # The child ends with its parent.
    wait_until(lambda: "interrupted" in [point.status for point in list_points(run)])
    again = wait(start(*resume(run)))
    assert again.code == 0, again.err
    assert f"resuming {run}: 2 of 4 points are done" in again.err
    result = read_result(run)
    assert result.status == "ok"
    assert [row.value for row in result.sweep.rows] == [1, 2, 4, 8]
    assert result.process.starts == 2
    begun = [(point.config["train"]["batch_size"], point.status) for point in list_points(run)]
    assert sorted(begun) == [(1, "ok"), (2, "ok"), (4, "interrupted"), (4, "ok"), (8, "ok")]
    # The same command again starts another sweep
    other = wait(start())
    assert (other.code, "resuming" in other.err) == (0, False)
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_sweep_stopped_gives_resume_hint_and_resumes(start, tmp_path: Path, number: int, code: int):
    child = start(batch_1="slow")
    wait_for_points(tmp_path, 2)
    run = find_sweep(tmp_path)
    # A terminal sends SIGINT to all processes of a command, a scheduler SIGTERM to the parent
    (os.killpg if number == signal.SIGINT else os.kill)(child.pid, number)
    stopped = wait(child)
    assert stopped.code == code, stopped.err
    assert f"resume with: trainstone sweep --resume {run.relative_to(tmp_path)}" in " ".join(stopped.out.split())
    result = read_result(run)
    assert result.status == "interrupted"
    assert [row.value for row in result.sweep.rows] == [8]
    assert result.findings[-1].message == f"stopped by {signal.Signals(number).name} after 1 of 4 points"
    for changes in (("--strict",), ("--out", "elsewhere"), ("--seed", "4")):
        refused = wait(start(*resume(run, *changes)))
        assert (refused.code, "cannot change recipe, plan or folder" in refused.err) == (2, True)
    planned = wait(start(*resume(run, "--dry-run")))
    assert f"# would resume {run}, and run 3 of 4 points, in this order:" in planned.out
    labels = [line for line in planned.out.splitlines() if line.startswith("# ") and ": batch" in line]
    assert labels == ["# 2: batch 1", "# 3: batch 4", "# 4: batch 2"]
    assert f" bench {run}/launch/batch_1.toml --out " in planned.out
    assert 'precision = "fp32"' in planned.out  # resolved by the first point
    again = wait(start(*resume(run, "--json")))
    assert again.code == 0, again.err
    assert [row["value"] for row in json.loads(again.out)["sweep"]["rows"]] == [1, 2, 4, 8]
    assert len(list_points(run)) == 5
    over = wait(start(*resume(run)))
    assert over.code == 7
    assert "is complete" in over.err
    assert f"repeat it: trainstone sweep {run}/config.toml --batch-sizes 1,2,4,8" in over.err


def test_sweep_second_ctrl_c_leaves_no_child(start, tmp_path: Path):
    child = start(batch_1="slow")
    wait_for_points(tmp_path, 2)
    point = find_running(tmp_path)
    # The signal goes to the parent only
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert wait(child).code == 130
    assert not psutil.pid_exists(point)
    assert read_result(find_sweep(tmp_path)).status == "interrupted"


def test_sweep_dry_run_lists_points_in_running_order(quick, tmp_path: Path):
    done = quick(*SWEEP, "--profile", "--dry-run")
    assert done.code == 0
    labels = [line for line in done.out.splitlines() if line.startswith("# ") and ": batch" in line]
    assert labels == [f"# {place}: batch {size}" for place, size in enumerate(ORDER, start=1)]
    assert done.out.count(" bench RUN/launch/batch_") == done.out.count(" profile RUN/launch/batch_") == 4
    plan = quick(*SWEEP, "--dry-run", "--json").json()
    assert [point["label"] for point in plan["points"]] == [f"batch {size}" for size in ORDER]
    assert not (tmp_path / "runs").exists()
