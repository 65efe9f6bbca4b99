"""Trackers: points are read back with TensorBoard's and MLflow's own readers; errors are raised before training."""

import builtins
import json
import logging
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from support.builders.training_results import make_evaluations, make_steps
from trainstone.config.schema import TrackingConfig
from trainstone.errors import MachineError
from trainstone.flows.train import tracking
from trainstone.flows.train.tracking import Mlflow, Tracker, open_trackers
from trainstone.results.steps import StepRecord

PARAMS = {"name": "demo", "train": {"batch_size": 64}, "tracking": {"mlflow": "http://me:secret@host/"}}
NEEDS = "needs the extra tracking"
BOARD = TrackingConfig(tensorboard=True)


class Memory(Tracker):
    """Store points in a list; with `full`, fail like a full disk after the first."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__()
        self.points: list[tuple[int, dict[str, float]]] = []
        self.full = full

    def add(self, step: int, values: dict[str, float]) -> None:
        self.points.append((step, values))
        if self.full:
            raise OSError(28, "No space left on device")


@contextmanager
def tracking_to(folder: Path, config: TrackingConfig, **how: Any) -> Iterator[list[Tracker]]:
    with ExitStack() as files:
        yield [files.enter_context(tracker) for tracker in open_trackers(config, folder, "run", PARAMS, **how)]


def quick_steps(number: int, seconds: float) -> Iterator[StepRecord]:
    for step in range(number):
        yield StepRecord(step, 0, step * seconds, 0.0, seconds, 8, float(step), 0.1)


def test_tracker_averages_steps_between_points():
    tracker = Memory()
    for record in quick_steps(1001, 1 / 1024):
        tracker.step(record)
    assert [step for step, _ in tracker.points] == [1, 513]
    assert tracker.points[1][1]["train/loss"] == sum(range(1, 513)) / 512
    assert tracker.points[1][1]["train/images_per_second"] == 8 * 1024


def test_tracker_on_full_disk_warns_once_and_stops(caplog: pytest.LogCaptureFixture):
    tracker = Memory(full=True)
    for record in quick_steps(3, 1.0):
        tracker.step(record)
    assert len(tracker.points) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("error", "ended"), [(None, "target_reached"), (KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_tracker_exit_sets_final_status(error: type[BaseException] | None, ended: str):
    tracker = Memory()
    tracker.finish("target_reached")
    tracker.__exit__(error, None, None)
    assert tracker._status == ended


@pytest.mark.parametrize(
    ("config", "missing", "message"),
    [
        (BOARD, "torch.utils.tensorboard", "tracking.tensorboard needs TensorBoard"),
        (TrackingConfig(mlflow="sqlite:///x.db"), "mlflow", "tracking.mlflow needs MLflow"),
    ],
)
def test_open_trackers_without_library_gives_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrackingConfig, missing: str, message: str
):
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith(missing):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(tracking, "import_module", refuse)
    with pytest.raises(MachineError, match=message) as caught, tracking_to(tmp_path, config):
        pass
    assert caught.value.hint == "pip install 'trainstone[tracking]'"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    entities = Mock(Metric=lambda name, value, _now, step: (name, value, step))
    monkeypatch.setattr(tracking, "import_module", lambda _name: entities)
    return Mock()


def test_mlflow_logs_asynchronously_and_close_waits(client: Mock):
    with Mlflow(client, "r1") as tracker:
        tracker.add(7, {"train/loss": 0.5})
        tracker.finish("target_reached")
    assert client.mock_calls == [
        call.log_batch("r1", metrics=[("train/loss", 0.5, 7)], synchronous=False),
        call.log_batch().wait(),
        call.set_terminated("r1", "FINISHED"),
    ]


def test_mlflow_failure_gives_one_warning_without_password(client: Mock, caplog: pytest.LogCaptureFixture):
    with Mlflow(client, "r1") as tracker:
        for _ in range(3):
            logging.getLogger(tracking.QUEUE_LOGGER).error("Failed to log: http://me:secret@host/ is gone")
        tracker.evaluation(make_evaluations()[0])
    assert client.mock_calls == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "//...@host/ is gone" in caplog.text


def read_events(folder: Path) -> Any:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=NEEDS)
    events = module.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_can_read_written_events(tmp_path: Path):
    pytest.importorskip("tensorboard", reason=NEEDS)
    with tracking_to(tmp_path, BOARD) as (tracker,):
        for record in make_steps():
            tracker.step(record)
        for found in make_evaluations():
            tracker.evaluation(found)
    events = read_events(tmp_path)
    losses = events.Scalars("train/loss")
    assert 100 < len(losses) <= 400
    assert losses[-1].value < losses[0].value
    assert [(found.step, round(found.value, 3)) for found in events.Scalars("val/top1")][-1] == (400, 0.924)
    assert events.Scalars("train/learning_rate")[-1].value < 0.01


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_purges_steps_repeated_by_resumed_run(tmp_path: Path):
    pytest.importorskip("tensorboard", reason=NEEDS)
    for first, last in ((0, 20), (10, 15)):
        with tracking_to(tmp_path, BOARD, first_step=first) as (tracker,):
            for record in list(quick_steps(last, 1.0))[first:]:
                tracker.step(record)
    steps = [found.step for found in read_events(tmp_path).Scalars("train/loss")]
    assert steps == list(range(1, 16))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_resumes_same_run(tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason=NEEDS)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    config = TrackingConfig(mlflow=uri)
    with tracking_to(tmp_path, config) as (tracker,):
        tracker.step(StepRecord(0, 0, 0.0, 0.0, 1.0, 8, math.nan, 0.1))
        tracker.evaluation(make_evaluations()[0])
        tracker.finish("interrupted")
    run_id = json.loads((tmp_path / "tracking.json").read_text())["mlflow_run_id"]
    client = mlflow.MlflowClient(uri)
    assert client.get_run(run_id).info.status == "KILLED"
    with tracking_to(tmp_path, config, first_step=50) as (tracker,):
        tracker.evaluation(make_evaluations()[1])
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.batch_size"] == "64"
    assert "secret" not in run.data.params["tracking.mlflow"]
    assert [found.value for found in client.get_metric_history(run_id, "val/top1")] == [0.212, 0.405]


@pytest.mark.filterwarnings("ignore")
def test_open_trackers_raises_when_mlflow_is_unusable(tmp_path: Path):
    pytest.importorskip("mlflow", reason=NEEDS)
    config = TrackingConfig(mlflow="nonsense://me:secret@host")
    with pytest.raises(MachineError, match="cannot use MLflow") as caught, tracking_to(tmp_path, config):
        pass
    assert "secret" not in caught.value.message
