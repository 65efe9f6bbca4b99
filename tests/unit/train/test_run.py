import errno
from pathlib import Path

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.errors import ResultError, RunError
from trainstone.results.store import create_run, read_result
from trainstone.train.run import explain_torch_error, keep_record


@pytest.fixture
def run(tmp_path: Path):
    return create_run(tmp_path, "bench", load_config("resnet50"), "trainstone bench")


def fail_with(run, err: BaseException) -> None:
    with keep_record(run):
        raise err


@pytest.mark.parametrize(
    ("raised", "ends_as", "status"),
    [
        (RunError("NaN"), RunError, "failed"),
        (OSError(errno.ENOSPC, "No space left on device"), ResultError, "failed"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), RunError, "failed"),
        (RuntimeError("MPS backend out of memory (MPS allocated"), RunError, "failed"),
        (RuntimeError("a bug"), RuntimeError, "failed"),
        (ZeroDivisionError("a bug"), ZeroDivisionError, "failed"),
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted"),
    ],
)
def test_every_end_is_written_before_it_is_raised(run, raised: BaseException, ends_as: type, status: str):
    with pytest.raises(ends_as):
        fail_with(run, raised)
    result = read_result(run.path)
    assert result.status == status
    assert result.findings[-1].code == ("interrupted" if status == "interrupted" else "run-failed")


def test_a_good_end_writes_nothing(run):
    with keep_record(run):
        pass
    assert read_result(run.path).status == "running"


def test_unknown_errors_stay_unknown():
    assert explain_torch_error(RuntimeError("shape mismatch")) is None
