import errno
from pathlib import Path

import pytest
import torch

from made_learning import make_training, write_training
from trainstone.config.load import load_config
from trainstone.errors import DataError, OutOfMemoryError, ResultError, RunError
from trainstone.machine.signals import StopSignals
from trainstone.results.store import create_run, read_result, reopen_run
from trainstone.train.lifecycle import lifecycle


@pytest.fixture
def run(tmp_path: Path):
    return create_run(tmp_path, "bench", load_config("resnet50"), "trainstone bench")


def fail_with(run, err: BaseException) -> None:
    with lifecycle(load_config("resnet50"), run, StopSignals()):
        raise err


@pytest.mark.parametrize(
    ("raised", "ends_as", "code"),
    [
        (RunError("NaN"), RunError, "run-failed"),
        (OSError(errno.ENOSPC, "No space left on device"), ResultError, "run-failed"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), OutOfMemoryError, "out-of-memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated"), OutOfMemoryError, "out-of-memory"),
        (OutOfMemoryError("out of memory: train.batch_size = 9"), OutOfMemoryError, "out-of-memory"),
        (MemoryError("of numpy"), MemoryError, "out-of-memory"),
        (RuntimeError("a bug"), RuntimeError, "run-failed"),
        (ZeroDivisionError("a bug"), ZeroDivisionError, "run-failed"),
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted"),
    ],
)
def test_every_end_is_written_before_it_is_raised(run, raised: BaseException, ends_as: type, code: str):
    with pytest.raises(ends_as):
        fail_with(run, raised)
    result = read_result(run.path)
    assert result.status == ("interrupted" if code == "interrupted" else "failed")
    assert result.findings[-1].code == code


@pytest.mark.parametrize(
    ("raised", "ends_as"),
    [
        (DataError("gone"), DataError),
        (OSError(errno.ENOSPC, "No space left on device"), ResultError),
        (RuntimeError("Connection closed by peer [127.0.0.1]:1"), Exception),
    ],
)
def test_a_training_that_is_taken_up_in_vain_stays_as_it_was(tmp_path: Path, raised: Exception, ends_as: type):
    path = write_training(tmp_path, make_training(verdict="fine"))
    run = reopen_run(path, "train", "x")
    with pytest.raises(ends_as):
        fail_with(run, raised)
    result = read_result(path)
    assert (result.status, result.verdict, result.findings) == ("target_reached", "fine", [])
    assert result.process.starts == 1


def test_one_that_has_begun_failed_by_itself(tmp_path: Path):
    run = reopen_run(write_training(tmp_path), "train", "x")
    run.begin()
    with pytest.raises(RunError):
        fail_with(run, RunError("NaN"))
    assert read_result(run.path).status == "failed"


def test_a_full_disk_does_not_hide_what_happened(run, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainstone.results.store.write_atomically", fail)
    with pytest.raises(RunError, match="NaN"):
        fail_with(run, RunError("NaN"))
    with pytest.raises(KeyboardInterrupt):
        fail_with(run, KeyboardInterrupt())


def test_a_rank_that_does_not_see_the_folder_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ResultError, match=f"rank 1 on .*: {tmp_path}/none/log.txt: No such file") as failed,
        lifecycle(load_config("resnet50"), None, StopSignals()),
    ):
        (tmp_path / "none/log.txt").open("w")
    assert "all ranks must see the same run folder" in str(failed.value.hint)
