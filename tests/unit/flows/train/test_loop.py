import errno
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock, call

import pytest
import torch

from support.builders.data_sets import CLASSES, ListSource, make_classify_samples, write_set
from support.builders.training_results import make_training, write_training
from support.builders.training_runs import TrainedRun, assert_same, make_config, read_trained_run, train_here
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.data.sample import DataSet, Split
from trainstone.engine.distributed.collectives import World
from trainstone.engine.optim import LossScale
from trainstone.errors import DataError, OutOfMemoryError, ResultError, RunError
from trainstone.flows import prepare
from trainstone.flows.lifecycle import lifecycle
from trainstone.flows.prepare import find_placements
from trainstone.flows.train import checkpoint, loop
from trainstone.flows.train import run as train_flow
from trainstone.flows.train.checkpoint import list_checkpoints, read_checkpoint
from trainstone.flows.train.result import has_one_clock
from trainstone.flows.train.start import list_warnings, open_splits
from trainstone.flows.train.state import TrainingState
from trainstone.formats.mllog import parse_line
from trainstone.machine.ranks import Rank
from trainstone.machine.signals import StopSignals
from trainstone.measure.recorder import Sink
from trainstone.originals.output_file import RankPlacement
from trainstone.results.progress import Progress
from trainstone.results.run_folder import RunFolder, create_run, read_result, reopen_run
from trainstone.results.steps import read_columns
from trainstone.results.telemetry import TelemetrySample

QUICK = {"stop.epochs": 2.0, "eval.target": 1.0, "data.generated_val": 11}


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> RunFolder:
    return train_here(make_config(**(QUICK | changes)), folder, monkeypatch)


def stop_and_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int, **changes: Any
) -> tuple[TrainedRun, TrainedRun, TrainedRun]:
    """Return the results of an uninterrupted run, of a run stopped after a step, and of that run after its resume."""

    def act(progress: Progress) -> None:
        if progress.phase == "training" and progress.step == step - 1:  # a request is known one step later
            os.kill(os.getpid(), signal.SIGTERM)

    config = make_config(**(QUICK | changes))
    whole = train_here(config, folder / "whole", monkeypatch)
    run = train_here(config, folder / "stopped", monkeypatch, act=act)
    stopped = read_trained_run(run.path)
    train_here(config, run.path, monkeypatch, resume=True)
    return read_trained_run(whole.path), stopped, read_trained_run(run.path)


def fake_evaluator(top1: float, loss: float = 0.0, images: int = 11) -> Callable[..., Iterator[Progress]]:
    """Return a fake evaluator with this accuracy and loss."""

    def evaluator(*_: Any) -> Any:
        yield Progress("evaluating")
        return torch.tensor([[images * top1, images, images * loss, images]], dtype=torch.float64)

    return evaluator


def test_resume_runs_evaluation_skipped_by_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, stopped, resumed = stop_and_resume(tmp_path, monkeypatch, 12)
    assert stopped.document["step"] == 12
    assert stopped.evaluated == []
    assert [step for _, step, _, _ in resumed.evaluated] == [12, 24]
    assert_same(resumed, whole)


def test_signal_interrupts_evaluation_and_resume_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_config(**(QUICK | {"eval.batch_size": 1}))
    whole = train_here(config, tmp_path / "whole", monkeypatch)
    evaluated: list[int] = []

    def act(progress: Progress) -> None:
        if progress.phase == "evaluating":
            evaluated.append(progress.images or 0)
            if len(evaluated) == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(config, tmp_path / "stopped", monkeypatch, act=act)
    assert evaluated == [1, 2, 3, 4]
    stopped = read_trained_run(run.path)
    assert (stopped.result.status, stopped.document["step"], stopped.evaluated) == ("interrupted", 12, [])
    assert (stopped.result.phases.eval_seconds or 0) > 0
    train_here(config, run.path, monkeypatch, resume=True)
    assert_same(read_trained_run(run.path), read_trained_run(whole.path))


def test_checkpoint_keep_limits_checkpoints_besides_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = iter([0.2, 0.4, 0.4, 0.3])
    monkeypatch.setattr(loop, "evaluate", lambda *_: fake_evaluator(next(found))())
    changes = {"train.batch_size": 32, "stop.epochs": 4.0, "checkpoint.keep": 3, "checkpoint.every_steps": 2}
    run = train(tmp_path, monkeypatch, **changes)
    folder = run.path / "checkpoints"
    assert [int(path.stem[5:]) for path in list_checkpoints(folder)] == [12, 10, 9]
    assert read_checkpoint(folder / "best.safetensors").document["step"] == 6
    assert run.result.quality.value == 0.4


def test_checkpoint_every_seconds_writes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = []
    write = checkpoint.write_checkpoint
    monkeypatch.setattr(checkpoint, "write_checkpoint", lambda *a: (written.append(a[1]), write(*a))[1])
    changes = {"stop.epochs": 1.0, "checkpoint.every_seconds": 1e-6}
    train(tmp_path, monkeypatch, **changes)
    assert written == [2, 4, 6, 8, 10, 12]


def test_nan_validation_loss_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "evaluate", fake_evaluator(0.0, float("nan")))
    learned = read_trained_run(train(tmp_path, monkeypatch, **{"stop.epochs": 1.0}).path)
    assert [metrics for _, _, _, metrics in learned.evaluated] == [{"top1": 0.0, "top5": 1.0}]


def test_resume_with_more_epochs_continues_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    constant = {"schedule.name": "constant", "schedule.warm_up_epochs": 0.0}
    run = train(tmp_path / "short", monkeypatch, **{"stop.epochs": 1.0, **constant})
    config = make_config(**(QUICK | constant))
    train_here(config, run.path, monkeypatch, resume=True)
    whole = train_here(config, tmp_path / "whole", monkeypatch)
    assert_same(read_trained_run(run.path), read_trained_run(whole.path))


def test_nan_error_names_loss_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LossScale, "value", 1024.0)
    message = r"at step \d+ \(learning rate .*, loss scale 1024\); no checkpoint was written yet$"
    with pytest.raises(RunError, match=message):
        train(tmp_path, monkeypatch, **{"optimizer.learning_rate": 1e12})
    (run,) = tmp_path.iterdir()
    assert read_result(run).status == "failed"


def test_sinks_receive_every_event_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink, on_disk = MagicMock(spec=Sink), []

    def note() -> None:
        """Called before a checkpoint: all of its steps must be on disk, but no part of the checkpoint."""
        (run,) = tmp_path.iterdir()
        steps = len(read_columns(run / "steps-rank0000.csv")["step"])
        on_disk.append((steps, len(list_checkpoints(run / "checkpoints"))))

    sink.__enter__.return_value = sink
    sink.__exit__.side_effect = partial(Sink.__exit__, sink)
    sink.flush.side_effect = note
    monkeypatch.setattr(train_flow, "open_trackers", lambda *_, **_more: iter([sink]))
    train(tmp_path, monkeypatch, **{"train.batch_size": 32, "checkpoint.best": False})
    expected = []
    for done in (3, 6):
        expected += [call.begin_steps(done - 3), *[call.step(ANY)] * 3, call.begin_evaluation(done)]
        expected += [call.end_evaluation(done), call.evaluation(ANY), call.flush()]
    assert sink.method_calls == [*expected, call.finish("target_missed"), call.close()]
    assert [event.args[0].step for event in sink.evaluation.mock_calls] == [3, 6]
    assert on_disk == [(3, 0), (6, 1)]


ASYNC = {"eval.async": True, "train.batch_size": 32, "stop.epochs": 4.0, "checkpoint.every_epochs": 0.0}


def test_async_evaluation_gives_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    late = train(tmp_path / "late", monkeypatch, **ASYNC)
    at_once = train(tmp_path / "once", monkeypatch, **(ASYNC | {"eval.async": False}))
    first, second = read_trained_run(late.path), read_trained_run(at_once.path)
    assert [one[1:] for one in first.evaluated] == [one[1:] for one in second.evaluated]
    assert [step for _, step, _, _ in first.evaluated] == [3, 6, 9, 12]
    assert all(tensor.equal(second.tensors[name]) for name, tensor in first.tensors.items())


def test_async_evaluation_reports_target_one_epoch_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = iter([0.2, 0.6, 0.9, 0.9])
    monkeypatch.setattr(loop, "evaluate", lambda *_: fake_evaluator(next(found))())
    run = train(tmp_path, monkeypatch, **(ASYNC | {"eval.target": 0.5}))
    quality = run.result.quality
    assert (run.result.status, quality.value, quality.steps) == ("target_reached", 0.6, 9)
    assert [one.step for one in quality.history] == [3, 6]
    assert next(found) == 0.9  # the third evaluation did not start
    assert read_checkpoint(run.path / "checkpoints/best.safetensors").document["step"] == 6
    events = [parse_line(line) for line in (run.path / "mlperf.log").read_text().splitlines()]
    message = [(one.key, one.metadata.get("epoch_num")) for one in events if one and "epoch_num" in one.metadata]
    message = [one for one in message if one[0].startswith("eval")]
    assert message == [(key, epoch) for epoch in (1, 2) for key in ("eval_start", "eval_stop", "eval_accuracy")]
    assert (events[-1].key, events[-1].metadata["status"]) == ("run_stop", "success")


@pytest.mark.parametrize("step", [3, 5])
def test_resume_with_pending_async_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int):
    whole, stopped, resumed = stop_and_resume(tmp_path, monkeypatch, step, **ASYNC)
    assert 3 <= stopped.document["step"] < 12
    assert_same(resumed, whole)


ONE_EPOCH = {"stop.epochs": 1.0, "data.generated_val": 11}


def test_clock_stops_at_evaluation_that_reached_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "evaluate", fake_evaluator(0.5, images=9))  # two of eleven could not be read
    run = train_here(make_config(**ONE_EPOCH, eval__target=0.5), tmp_path, monkeypatch)
    phases, quality = run.result.phases, run.result.quality
    assert run.result.status == "target_reached"
    assert phases.checkpoint_seconds == 0
    assert phases.train_seconds + phases.eval_seconds <= quality.seconds_to_target < phases.program_seconds
    assert (run.path / "checkpoints/best.safetensors").exists()


def test_final_status_is_written_before_peak_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def act(progress: Progress) -> None:
        if progress.phase == "measuring this device's peak":
            (run,) = tmp_path.iterdir()
            seen.append(read_result(run))

    train_here(make_config(**ONE_EPOCH, eval__target=1.0), tmp_path, monkeypatch, act=act)
    (early,) = seen
    assert early.status == "target_missed"
    assert early.verdict is not None
    assert early.throughput is None
    assert len(early.quality.history) == 1


def test_resumed_start_without_steps_has_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The step file is lost, and a signal interrupts the evaluation that is due first."""
    config = make_config(**ONE_EPOCH, eval__batch_size=1)

    def act(progress: Progress) -> None:
        if progress.phase == "evaluating":
            os.kill(os.getpid(), signal.SIGTERM)

    run = train_here(config, tmp_path, monkeypatch, act=act)
    (run.path / "steps-rank0000.csv").unlink()
    again = train_here(config, run.path, monkeypatch, resume=True, act=act)
    assert again.result.status == "interrupted"
    assert again.result.throughput is None
    assert [device.rank for device in again.result.devices] == [0]
    assert "interrupted" in [found.code for found in again.result.findings]


@pytest.mark.parametrize(
    ("starts", "times", "counted"), [(1, (0, 1, 2), True), (2, (0, 1, 2), False), (1, (0, 2, 1), False)]
)
def test_has_one_clock_only_for_single_start(starts: int, times: tuple[float, ...], counted: bool):
    samples = [TelemetrySample(time_seconds=t, step=0, energy_joules=10.0 * n) for n, t in enumerate(times)]
    assert has_one_clock(TrainingState("top1", 96, 8, starts=starts), samples) == counted


CPU = torch.device("cpu")


def make_original(root: Path, *settings: str) -> Config:
    return load_config("resnet50-sc22", settings=["model.num_classes=2", *settings], flags={"data.root": str(root)})


def make_splits(root: Path, *names: str) -> Path:
    splits = [Split(name, ListSource(make_classify_samples(4, 4 * place))) for place, name in enumerate(names)]
    return write_set(root, DataSet("classify", "made up", CLASSES, splits, "made-up"), "recordio")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train",), "has only one split, train: validation needs another one"),
        (("val",), "has only one split, val: validation needs another one"),
        (("train", "test"), "has no split val; available: train, test"),
    ],
)
def test_open_splits_without_validation_split_allows_training_only(tmp_path: Path, names: tuple, message: str):
    config = make_original(make_splits(tmp_path / "set", *names))
    images = open_splits(config)
    assert (len(images.training.source), images.validation) == (4, None)
    *_, warning = list_warnings(config, images, 256, Rank(0, 1))
    assert (warning.code, warning.severity) == ("not-evaluated", "info")
    assert f"no validation split (splits: {', '.join(names)})" in warning.message
    for setting in ("eval.target=0.5", "eval.every_epochs=2"):
        with pytest.raises(DataError, match=message):
            open_splits(make_original(tmp_path / "set", setting))


def test_find_placements_counts_devices_per_host(monkeypatch: pytest.MonkeyPatch):
    message: list[Any] = [[{"host": host} for host in ("a", "a", "b", "b", "a")], None]
    monkeypatch.setattr(prepare, "gather", lambda _world, _mine: message.pop(0))
    placements = (
        RankPlacement("a", 0),
        RankPlacement("a", 1),
        RankPlacement("b", 0),
        RankPlacement("b", 1),
        RankPlacement("a", 2),
    )
    assert find_placements(World(Rank(0, 5), CPU, control="others")) == placements
    assert find_placements(World(Rank(1, 5), CPU, control="others")) == ()


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
def test_lifecycle_records_failure_before_raising(run, raised: BaseException, ends_as: type, code: str):
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
def test_lifecycle_keeps_result_of_resumed_run_that_fails_before_first_step(
    tmp_path: Path, raised: Exception, ends_as: type
):
    path = write_training(tmp_path, make_training(verdict="fine"))
    run = reopen_run(path, "train", "x")
    with pytest.raises(ends_as):
        fail_with(run, raised)
    result = read_result(path)
    assert (result.status, result.verdict, result.findings) == ("target_reached", "fine", [])
    assert result.process.starts == 1


def test_lifecycle_records_failure_of_resumed_run_after_first_step(tmp_path: Path):
    run = reopen_run(write_training(tmp_path), "train", "x")
    run.commit()
    with pytest.raises(RunError):
        fail_with(run, RunError("NaN"))
    assert read_result(run.path).status == "failed"


def test_lifecycle_on_full_disk_raises_original_error(run, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainstone.results.run_folder.write_atomically", fail)
    with pytest.raises(RunError, match="NaN"):
        fail_with(run, RunError("NaN"))
    with pytest.raises(KeyboardInterrupt):
        fail_with(run, KeyboardInterrupt())


def test_rank_that_cannot_see_run_folder_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ResultError, match=f"rank 1 on .*: {tmp_path}/none/log.txt: No such file") as failed,
        lifecycle(load_config("resnet50"), None, StopSignals()),
    ):
        (tmp_path / "none/log.txt").open("w")
    assert "all ranks must see the same run folder" in str(failed.value.hint)
