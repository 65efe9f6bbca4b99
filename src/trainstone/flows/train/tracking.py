"""Write training curves to TensorBoard and MLflow (extra `tracking`) while the run trains.

A missing library or an unreachable server is an error before training begins; if it fails later there is a warning and
training continues. Only rank 0 opens trackers.
"""

import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainstone.config.load import flatten
from trainstone.config.schema import TrackingConfig
from trainstone.errors import MachineError
from trainstone.files import dump_json, write_atomically
from trainstone.measure.recorder import Sink
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
"""Time between two points of a curve; the steps between are averaged, so that tracking does not slow training."""
MOST_PARAMS, LONGEST_PARAM = 100, 6000
"""MLflow's limits per request. https://mlflow.org/docs/latest/api_reference/rest-api.html#log-batch"""
QUEUE_LOGGER = "mlflow.utils.async_logging.async_logging_queue"
STATUS_FILE = "tracking.json"
EXPERIMENT = "trainstone"
HINT = "pip install 'trainstone[tracking]'"
ENDS = {"interrupted": "KILLED", "killed": "KILLED", "failed": "FAILED"}


class Tracker(Sink):
    """Base of the trackers: averages steps to a few points per second and passes on every evaluation."""

    def __init__(self) -> None:
        self._written_at = float("-inf")
        self._losses: list[float] = []
        self._images, self._seconds = 0, 0.0
        self._status: Status = "ok"
        self._broken = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        self.close()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def step(self, record: StepRecord) -> None:
        """Add a step; write the mean of the steps since the last point every STEP_SECONDS."""
        self._losses.append(record.loss)
        self._images += record.images
        self._seconds += record.step_seconds
        now = record.start_seconds + record.step_seconds
        if now - self._written_at < STEP_SECONDS:
            return
        values = {"train/loss": sum(self._losses) / len(self._losses), "train/learning_rate": record.lr}
        if self._seconds > 0:
            values["train/images_per_second"] = self._images / self._seconds
        self._write(record.step + 1, values | {"train/epoch": float(record.epoch)})
        self._written_at, self._losses, self._images, self._seconds = now, [], 0, 0.0

    def evaluation(self, evaluation: Evaluation) -> None:
        values = {f"val/{name}": value for name, value in evaluation.metrics.items()}
        self._write(evaluation.step, values | {"val/epoch": evaluation.epoch, "val/seconds": evaluation.seconds})

    def finish(self, status: Status) -> None:
        self._status = status

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._broken:
            return
        try:
            self.add(step, values)
        except OSError as err:  # a full disk
            self._broken = True
            log.warning("%s failed and gets no more points; training continues: %s", type(self).__name__, err)


class TensorBoard(Tracker):
    """Write TensorBoard event files into the run folder."""

    def __init__(self, folder: Path, params: Mapping[str, str], first_step: int) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as err:
            raise MachineError(f"tracking.tensorboard needs TensorBoard: {err}", hint=HINT) from err
        # Hide points that were written after the checkpoint that the run resumes from
        purge = first_step + 1 if first_step else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
        if params and not first_step:
            self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in params.items()))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if not self._broken:
            self._writer.close()


class Mlflow(Tracker):
    """Log to one run on an MLflow server or in an MLflow database, with MLflow's asynchronous logging."""

    def __init__(self, client: Any, run_id: str) -> None:
        super().__init__()
        self._client, self._run_id = client, run_id
        self._metric = import_module("mlflow.entities").Metric
        # The queue sends in order with ten threads: when the last 20 are done, all are.
        self._sent: deque[Any] = deque(maxlen=20)
        logging.getLogger(QUEUE_LOGGER).addFilter(self._report_lost)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._sent.append(self._client.log_batch(self._run_id, metrics=metrics, synchronous=False))

    def close(self) -> None:
        """Wait for queued points, then set the final status of the MLflow run."""
        try:
            if not self._broken:
                for operation in self._sent:
                    operation.wait()  # bounded by the retries and time-outs that open_mlflow sets
                self._client.set_terminated(self._run_id, ENDS.get(self._status, "FINISHED"))
        except Exception as err:  # noqa: BLE001  stores are plug-ins and may raise anything
            log.warning("could not set the final status of the MLflow run: %s", describe_error(err))
        finally:
            logging.getLogger(QUEUE_LOGGER).removeFilter(self._report_lost)

    def _report_lost(self, record: logging.LogRecord) -> bool:
        """Replace MLflow's log line per failed request by one warning; send nothing from then on."""
        if not self._broken:
            self._broken = True
            message = describe_error(record.getMessage())
            log.warning("MLflow failed and gets no more points; training continues: %s", message)
        return False


def open_trackers(
    config: TrackingConfig, run_path: Path, run_name: str, params: dict[str, Any], *, first_step: int = 0
) -> Iterator[Tracker]:
    """Open the configured trackers one by one; a resumed run extends its curves from `first_step`."""
    flat = {key: hide_password(str(value)) for key, value in flatten(params)}
    if config.tensorboard:
        yield TensorBoard(run_path / "tensorboard", flat, first_step)
    if config.mlflow is not None:
        yield open_mlflow(config.mlflow, run_path / STATUS_FILE, run_name, flat)


def open_mlflow(uri: str, file: Path, run_name: str, params: Mapping[str, str]) -> Mlflow:
    """Resume the MLflow run whose id `file` holds, or create one and write its id there."""
    # No usage statistics; and an unreachable server is reported in seconds instead of minutes.
    settings = {"DISABLE_TELEMETRY": "true", "HTTP_REQUEST_MAX_RETRIES": "2", "HTTP_REQUEST_TIMEOUT": "10"}
    for name, value in settings.items():
        os.environ.setdefault(f"MLFLOW_{name}", value)
    try:
        mlflow = import_module("mlflow")
    except ImportError as err:
        raise MachineError(f"tracking.mlflow needs MLflow: {err}", hint=HINT) from err
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        run_id = find_run(client, file)
        if run_id is None:  # create it in the experiment of MLFLOW_EXPERIMENT_NAME, or in our own
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            experiment = client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment is not None else client.create_experiment(name)
            run_id = str(client.create_run(experiment_id, run_name=run_name).info.run_id)
            param = import_module("mlflow.entities").Param
            logged = [param(re.sub(r"[^\w./ -]", "_", key), value[:LONGEST_PARAM]) for key, value in params.items()]
            for begin in range(0, len(logged), MOST_PARAMS):
                client.log_batch(run_id, params=logged[begin : begin + MOST_PARAMS])
    except Exception as err:  # stores are plug-ins and may raise anything
        message = f"cannot use MLflow at {hide_password(uri)}: {describe_error(err)}"
        hint = "for example --set tracking.mlflow=sqlite:///mlflow.db, or http://localhost:5000 for a server"
        raise MachineError(message, hint=hint) from err
    write_atomically(file, dump_json({"mlflow_run_id": run_id}))
    return Mlflow(client, run_id)


def find_run(client: Any, file: Path) -> str | None:
    """Set the MLflow run of an earlier start to RUNNING and return its id; None: there is none, or it was removed."""
    try:
        run_id = str(json.loads(file.read_text(encoding="utf-8"))["mlflow_run_id"])
        client.update_run(run_id, status="RUNNING")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, import_module("mlflow.exceptions").MlflowException) as err:
        log.warning("cannot resume the MLflow run of %s, starting a new one: %s", file, describe_error(err))
        return None
    return run_id


def describe_error(err: object) -> str:
    """Return the first line of an error, shortened and without passwords."""
    return hide_password(str(err).strip().partition("\n")[0])[:300]


def hide_password(text: str) -> str:
    """Replace user names and passwords in the URLs of a text."""
    return re.sub(r"//[^/@\s]*@", "//...@", text)
