"""Life cycle of a run with any command: signals, closed terminals, one writer at a time, recorded failures."""

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from support.builders.checkpoints import make_checkpoint
from support.builders.training_runs import set_arguments
from support.processes.command import LIMIT, command_line, find_run, narrow_arguments
from support.processes.forked import Nursery, wait_until
from trainstone.results.run_folder import read_result

TRAIN = ("train", "demo-classify", *set_arguments(stop__epochs=20.0, eval__every_epochs=5, checkpoint__every_steps=20))
ENDLESS = ("--seconds", "100", "--set", "measure.half_width=1e-9")
REOPEN = "; sys.stderr = os.fdopen(2, 'w', 1, closefd=False)"
CLOSED_PIPE = f"import os, sys; read, write = os.pipe(); os.dup2(write, 2); os.close(read); os.close(write){REOPEN}"
FULL = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 2){REOPEN}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize(
    ("verb", "place"),
    [("train", "train.start.open_splits"), ("eval", "evaluate.run.open_images"), ("bench", "prepare.open_data")],
)
def test_failed_run_has_traceback_in_log(nursery: Nursery, tmp_path: Path, checkpoint: Path, verb: str, place):
    module, _, function = place.rpartition(".")
    fail = f"import trainstone.flows.{module} as flow; flow.{function} = lambda *_: 1 / 0"
    words = {"train": TRAIN, "eval": ("eval", str(checkpoint)), "bench": ("bench", *narrow_arguments())}[verb]
    ended = nursery.start(*words, "--out", str(tmp_path), prepare=fail).wait()
    assert ended.code == 1
    run = find_run(tmp_path)
    assert read_result(run).status == "failed"
    log = (run / "log.txt").read_text()
    assert "Traceback" in log
    assert "ZeroDivisionError: division by zero" in log


@pytest.mark.parametrize(
    ("name", "number", "shown"),
    [
        ("inference", signal.SIGHUP, "measuring"),
        ("runs", signal.SIGUSR1, "run 1 of 2 · measuring"),
        ("runs", signal.SIGHUP, "run 1 of 2"),
        ("aa", signal.SIGHUP, "comparing"),
    ],
)
def test_scheduler_signal_interrupts_every_kind_of_run(
    nursery: Nursery, tmp_path: Path, checkpoint: Path, name: str, number: signal.Signals, shown: str
):
    out = (*ENDLESS, "--out", str(tmp_path))
    words = {
        "inference": ("eval", str(checkpoint), "--bench", *out),
        "runs": ("bench", "--runs", "2", *narrow_arguments(), *out),
        "aa": ("doctor", "--aa", *narrow_arguments(), *ENDLESS),
    }[name]
    child = nursery.start(*words)
    wait_until(lambda: shown in child.err.read_text())
    child.send(number)
    ended = child.wait()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    if name != "aa":
        result = read_result(find_run(tmp_path))
        assert result.status == "interrupted"
        assert "interrupted" in [found.code for found in result.findings]


@pytest.mark.parametrize("broken", [CLOSED_PIPE, FULL], ids=["closed pipe", "full disk"])
def test_train_survives_closed_pipe_or_full_disk_on_stderr(nursery: Nursery, tmp_path: Path, broken: str):
    ended = nursery.start(*TRAIN, "--out", str(tmp_path), prepare=broken).wait()
    assert ended.code == 0
    assert read_result(find_run(tmp_path)).status == "target_missed"


def test_bench_with_closed_stdout_succeeds(tmp_path: Path):
    words = command_line("bench", *narrow_arguments(), "--iterations", "3", "--json", "--out", str(tmp_path))
    done = subprocess.run(["bash", "-c", f"{shlex.join(words)} >&-"], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert read_result(find_run(tmp_path)).status == "ok"


def test_bench_with_full_stdout_gives_one_message(nursery: Nursery, tmp_path: Path):
    full = (
        "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.stdout = os.fdopen(1, 'w', closefd=False)"
    )
    words = ("bench", *narrow_arguments(), "--iterations", "3", "--json", "--out", str(tmp_path))
    ended = nursery.start(*words, prepare=full).wait()
    assert ended.code == 7
    assert "error: cannot write to standard output: No space left on device" in ended.err
    assert read_result(find_run(tmp_path)).status == "ok"


def test_concurrent_resume_succeeds_in_one_process_only(nursery: Nursery, tmp_path: Path):
    child = nursery.start(*TRAIN, "--out", str(tmp_path))
    wait_until(lambda: any(tmp_path.glob("*/checkpoints/step-*.safetensors")))
    child.send(signal.SIGTERM)
    assert child.wait().code == 75
    run = find_run(tmp_path)
    # Simulate a race: each process reads the result before the other one has set it to running.
    late = "import time, trainstone.results.run_folder as store; store.refuse_running = lambda *_: time.sleep(1)"
    both = [nursery.start("train", "--resume", str(run), prepare=late) for _ in range(2)]
    ended = sorted((one.wait() for one in both), key=lambda one: one.code)
    assert [one.code for one in ended] == [0, 7]
    assert f"error: {run} is in use by process " in ended[1].err
    steps = [line.split(",")[0] for line in (run / "steps-rank0000.csv").read_text().splitlines()[1:]]
    assert steps == [str(number) for number in range(240)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_while_torch_is_loading_is_recorded(tmp_path: Path, number: signal.Signals):
    words = command_line("bench", *narrow_arguments(), *ENDLESS, "--out", str(tmp_path))
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(tmp_path.glob("*/result.json")))
    child.send_signal(number)
    _, err = child.communicate(timeout=LIMIT)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads((find_run(tmp_path) / "result.json").read_text())
    assert result["status"] == "interrupted"


def test_children_of_killed_sweep_end(nursery: Nursery, tmp_path: Path):
    child = nursery.start("sweep", "--batch-sizes", "2,4", *narrow_arguments(), *ENDLESS, "--out", str(tmp_path))
    wait_until(lambda: "· measuring" in child.err.read_text())
    (point,) = tmp_path.glob("*/points/*")
    child.send(signal.SIGKILL)
    child.wait()
    wait_until(lambda: json.loads((point / "result.json").read_text())["status"] == "interrupted")
