"""Tests of MlperfLog: order of events, epochs and blocks, run_stop, and resumed runs."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.builders.mlperf_logs import BEGAN, IMAGENET, Clock, load_mlperf, open_made_log, write_closed_log
from trainstone.config.schema import change_section
from trainstone.engine.event_schedule import EventSchedule
from trainstone.formats.mllog import Event, format_line, read_mllog
from trainstone.machine.ranks import Rank
from trainstone.models.resnet import build_resnet
from trainstone.originals.mlperf.training_log import MlperfLog, check_division, read_events
from trainstone.results.schema.quality import Evaluation
from trainstone.results.steps import StepRecord

BATCH = 10
SMALL = build_resnet(18, width=16, num_classes=2)
USUAL = {"eval__every_epochs": 2, "eval__offset": 1, "stop__epochs": 6.0, "eval__target": 0.9}
RunLog = Callable[..., MlperfLog]


@pytest.fixture
def open_log(tmp_path: Path) -> RunLog:
    """Return a factory of logs of a run with 40 images, 4 steps per epoch, evaluated after epochs 2, 4, 6."""

    def open_one(images: int = 40, clock: Clock | None = None, **changes: object) -> MlperfLog:
        config = load_mlperf(**USUAL | changes)
        event_schedule = EventSchedule(images, BATCH, config.eval, config.stop, config.checkpoint)
        return open_made_log(tmp_path / "mlperf.log", config, 1, SMALL, event_schedule=event_schedule, clock=clock)

    return open_one


def make_steps(log: MlperfLog, first: int, end: int) -> None:
    """Add the steps from `first` to before `end`, like the training loop between two events."""
    log.begin_steps(first)
    for step in range(first, end):
        log.step(StepRecord(step, 0, float(step), 0.0, 1.0, BATCH, 1.0, 0.1))


def evaluate(log: MlperfLog, done: int, top1: float = 0.5) -> None:
    log.begin_evaluation(done)
    evaluated = Evaluation(
        epoch=1, step=done, seconds=1, eval_seconds=1, metrics={"top1": top1, "top5": 1.0}, images=40
    )
    log.evaluation(evaluated)


def train_epochs(log: MlperfLog, first: int, last: int, top1: float = 0.5) -> None:
    """Add epochs of four steps, counted from 1, with an evaluation every second epoch."""
    for epoch in range(first, last + 1):
        make_steps(log, 4 * epoch - 4, 4 * epoch)
        if epoch % 2 == 0:
            evaluate(log, 4 * epoch, top1)


def read_body(path: Path) -> list[Event]:
    """Return the events after the header."""
    events = read_mllog(path)
    return events[[event.key for event in events].index("eval_samples") + 1 :]


def list_keys_and_epochs(events: list[Event]) -> list[tuple[str, object]]:
    """Return each event's key with its epoch; throughput events are skipped."""
    wanted = ("epoch_num", "first_epoch_num", "status")
    numbers = [next((event.metadata[name] for name in wanted if name in event.metadata), None) for event in events]
    pairs = zip((event.key for event in events), numbers, strict=True)
    return [pair for pair in pairs if pair[0] not in ("tracked_stats", "throughput")]


def test_mlperf_log_keys_are_in_original_order(tmp_path: Path):
    write_closed_log(tmp_path / "a.log", seed=5, epochs=7)
    events = read_mllog(tmp_path / "a.log")
    keys = list(dict.fromkeys(event.key for event in events))
    assert keys == [
        "init_start",  # seventh in the original
        "submission_benchmark", "submission_org", "submission_division", "submission_status", "submission_platform",
        "cache_clear", "seed", "model_bn_span", "weights_initialization", "init_stop",
        "lars_opt_learning_rate_decay_poly_power", "lars_opt_end_learning_rate", "d_batch_size", "global_batch_size",
        "gradient_accumulation_steps", "opt_name", "lars_epsilon", "lars_opt_weight_decay", "lars_opt_momentum",
        "lars_opt_base_learning_rate", "lars_opt_learning_rate_warmup_epochs", "lars_opt_learning_rate_decay_steps",
        "run_start", "train_samples", "eval_samples", "block_start", "epoch_start", "epoch_stop", "tracked_stats",
        "throughput", "eval_start", "eval_stop", "eval_accuracy", "block_stop", "run_stop",
    ]  # fmt: skip
    values = {event.key: event.value for event in events}
    assert (values["seed"], values["submission_platform"]) == (5, "8xMade-up accelerator")
    assert (values["model_bn_span"], values["train_samples"], values["eval_samples"]) == (408, 1281167, 50000)
    assert sum(event.key == "weights_initialization" for event in events) == 161


def test_mlperf_log_epochs_blocks_and_evaluations_are_nested(open_log: RunLog, tmp_path: Path):
    with open_log() as log:
        log.begin()
        train_epochs(log, 1, 3)
        train_epochs(log, 4, 4, top1=0.95)
        log.finish("target_reached")
    assert list_keys_and_epochs(read_body(tmp_path / "mlperf.log")) == [
        ("block_start", 1), ("epoch_start", 1), ("epoch_stop", 1), ("epoch_start", 2), ("epoch_stop", 2),
        ("eval_start", 2), ("eval_stop", 2), ("eval_accuracy", 2), ("block_stop", 1),
        ("block_start", 3), ("epoch_start", 3), ("epoch_stop", 3), ("epoch_start", 4), ("epoch_stop", 4),
        ("eval_start", 4), ("eval_stop", 4), ("eval_accuracy", 4), ("block_stop", 3), ("run_stop", "success"),
    ]  # fmt: skip
    blocks = [event for event in read_body(tmp_path / "mlperf.log") if event.key == "block_start"]
    assert [event.metadata["epoch_count"] for event in blocks] == [2, 2]


@pytest.mark.parametrize(
    ("defects", "images", "rate"), [(True, 1281167, 1281167 / 4), (False, 1281167, 10.0), (True, None, 10.0)]
)
def test_mlperf_log_throughput_counts_images_and_defect_counts_imagenet(
    open_log: RunLog, tmp_path: Path, defects: bool, images: int | None, rate: float
):
    with open_log() as log:
        log._config = change_section(load_mlperf(**USUAL, original_defects=defects), "schedule", images=images)
        log.begin()
        make_steps(log, 0, 4)
    stats = {event.key: event.value for event in read_body(tmp_path / "mlperf.log")}
    assert (stats["tracked_stats"], stats["throughput"]) == ({"imgs_sec": rate}, rate)


@pytest.mark.parametrize("end", ["target_missed", "interrupted", "ok", RuntimeError, KeyboardInterrupt])
def test_mlperf_log_run_below_target_is_aborted(open_log: RunLog, tmp_path: Path, end):
    with suppress(RuntimeError, KeyboardInterrupt), open_log() as log:
        log.begin()
        make_steps(log, 0, 3)
        if not isinstance(end, str):
            raise end
        log.finish(end)
    last = read_body(tmp_path / "mlperf.log")[-1]
    ended = {RuntimeError: "failed", KeyboardInterrupt: "interrupted"}.get(end, end)
    assert (last.key, last.metadata["status"], last.metadata["ended"]) == ("run_stop", "aborted", ended)


@pytest.mark.parametrize(("status", "ended"), [("target_missed", True), ("ok", True), ("interrupted", False)])
def test_mlperf_log_finish_stops_block_without_evaluation(open_log: RunLog, tmp_path: Path, status: str, ended: bool):
    """The original evaluates only at its interval, so its last epochs are not evaluated."""
    with open_log(stop__epochs=3.0, eval__at_end=False) as log:
        log.begin()
        train_epochs(log, 1, 3)
        log.finish(status)
    body = read_body(tmp_path / "mlperf.log")
    assert (("block_stop", 3) in list_keys_and_epochs(body)) is ended
    assert [event.metadata["epoch_count"] for event in body if event.key == "block_start"] == [2, 1]


def find_disorder(events: list[Event]) -> list[str]:
    """Return the errors in epochs, blocks and evaluations of a finished run."""
    wrong, epochs, block, opened = [], [], None, None
    for event in events:
        number = event.metadata.get("epoch_num")
        if event.key == "block_start":
            first = event.metadata["first_epoch_num"]
            block = range(first, first + event.metadata["epoch_count"])
        elif event.key == "epoch_start":
            wrong += [f"epoch {number} begins in {opened}, block {block}"] if opened or number not in block else []
            opened = number
        elif event.key == "epoch_stop":
            wrong += [f"epoch {number} ends in {opened}"] if opened != number else []
            opened = None
            epochs.append(number)
        elif event.key.startswith("eval_"):
            wrong += [f"{event.key} of {number}, block {block}"] if number != block[-1] else []
    return wrong + ([] if epochs == list(range(1, len(epochs) + 1)) else [f"epochs {epochs}"])


def run_all(log: MlperfLog) -> None:
    """Write all events of a run, in the order of the training loop."""
    event_schedule, done = log._event_schedule, 0
    while done < event_schedule.last_step:
        end = event_schedule.next_event(done)
        make_steps(log, done, end)
        done = end
        if event_schedule.evaluates_after(done):
            evaluate(log, done)
    log.finish("target_missed")


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("images", [1, 3, 6, 7, 13, 25])
def test_mlperf_log_epochs_stay_nested_for_any_step_length(open_log: RunLog, tmp_path: Path, images: int, every: int):
    evaluated = {"eval__every_epochs": every, "eval__offset": max(0, every - 2)}
    with open_log(images, **evaluated) as log:
        log.begin()
        run_all(log)
    body = read_body(tmp_path / "mlperf.log")
    assert find_disorder(body) == []
    last = [event.metadata["epoch_num"] for event in body if event.key == "epoch_stop"][-1]
    assert last == log._event_schedule.last_step * BATCH // images >= 6


def test_mlperf_log_other_ranks_write_nothing(tmp_path: Path):
    with open_made_log(None, load_mlperf(**USUAL), 2, SMALL) as log:
        log.begin()
        log.resume(4, evaluated=False)
        train_epochs(log, 1, 2)
        log.finish("ok")
    assert list(tmp_path.iterdir()) == []


def write_before(open_log: RunLog, epochs: int = 3, status: str | None = "interrupted", **changes: object) -> None:
    with open_log(**changes) as log:
        log.begin()
        train_epochs(log, 1, epochs)
        if status:
            log.finish(status)


def test_mlperf_log_resume_keeps_first_run_start(open_log: RunLog, tmp_path: Path):
    path = tmp_path / "mlperf.log"
    write_before(open_log)
    with open_log(clock=Clock(BEGAN + 5000)) as log:
        log.resume(8, evaluated=True)
        train_epochs(log, 3, 4, top1=0.95)
        log.finish("target_reached")
    body = read_body(path)
    pairs = list_keys_and_epochs(body)
    assert [key for key, _ in pairs].count("run_stop") == 1
    assert pairs[-1] == ("run_stop", "success")
    assert [number for key, number in pairs if key == "epoch_start"] == [1, 2, 3, 4]
    assert [number for key, number in pairs if key == "block_start"] == [1, 3]
    events = read_mllog(path)
    assert [event.time_ms for event in events if event.key == "run_start"] == [int(BEGAN * 1000)]
    assert events[-1].time_ms == int(BEGAN * 1000) + 5_000_000


def test_mlperf_log_resume_within_epoch_finishes_epoch(open_log: RunLog, tmp_path: Path):
    with open_log() as log:
        log.begin()
        make_steps(log, 0, 3)  # killed: no run_stop
        log._file.close()
        log._file = None
    with open_log() as log:
        log.resume(2, evaluated=False)
        make_steps(log, 2, 4)
    assert list_keys_and_epochs(read_body(tmp_path / "mlperf.log")) == [
        ("block_start", 1), ("epoch_start", 1), ("resumed", None), ("epoch_stop", 1),
    ]  # fmt: skip


def test_mlperf_log_resume_after_last_step_has_one_run_stop(open_log: RunLog, tmp_path: Path):
    path = tmp_path / "mlperf.log"
    with open_log() as log:
        log.begin()
        train_epochs(log, 1, 2, top1=0.95)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for text in (whole, "".join(lines[:-1]), "".join(lines[:-2])):
        path.write_text(text)
        with open_log(clock=Clock(BEGAN + 9999)) as log:
            log.resume(8, evaluated=True)
            log.finish("target_reached")
        body = read_body(path)
        assert list_keys_and_epochs(body)[-1] == ("run_stop", "success")
        assert body[-1].time_ms == body[-2].time_ms == int(BEGAN * 1000)  # not the time of the resume


def test_mlperf_log_resume_without_new_step_leaves_file_unchanged(open_log: RunLog, tmp_path: Path):
    path = tmp_path / "mlperf.log"
    write_before(open_log)
    before = path.read_bytes()
    with suppress(RuntimeError), open_log() as log:
        log.resume(8, evaluated=True)
        log.begin_steps(8)
        raise RuntimeError
    assert path.read_bytes() == before


def test_mlperf_log_resume_writes_one_resumed_event(open_log: RunLog, tmp_path: Path):
    def find_resumed() -> list[tuple[int, int]]:
        events = [event for event in read_body(tmp_path / "mlperf.log") if event.key == "resumed"]
        return [(event.metadata["step"], event.time_ms // 1000 - int(BEGAN)) for event in events]

    write_before(open_log, epochs=1)
    with open_log(clock=Clock(BEGAN + 100)) as log:  # its steps are lost: no checkpoint
        log.resume(4, evaluated=False)
        make_steps(log, 4, 6)
    assert find_resumed() == [(4, 100)]
    with open_log(clock=Clock(BEGAN + 200)) as log:
        log.resume(4, evaluated=False)
        make_steps(log, 4, 8)
    assert find_resumed() == [(4, 200)]
    with open_log(clock=Clock(BEGAN + 300)) as log:  # only the pending evaluation
        log.resume(8, evaluated=False)
        evaluate(log, 8)
    for seconds in (400, 500):
        with open_log(clock=Clock(BEGAN + seconds)) as log:
            log.resume(8, evaluated=True)
            make_steps(log, 8, 9)
        assert find_resumed() == [(4, 200), (8, 300), (8, seconds)]
    times = [event.time_ms for event in read_mllog(tmp_path / "mlperf.log")]
    assert times == sorted(times)


def test_mlperf_log_resume_header_has_new_values_and_old_times(open_log: RunLog, tmp_path: Path):
    write_before(open_log)
    sgd = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.8, "optimizer__rate_for": "run"}
    with open_log(clock=Clock(BEGAN + 7), **sgd, mlperf__org="another") as log:
        log.resume(12, evaluated=False)
        make_steps(log, 12, 13)
    events = read_mllog(tmp_path / "mlperf.log")
    times = [event.time_ms for event in events]
    assert times == sorted(times)
    head = {event.key: event for event in events}
    assert head["submission_org"].value == "another"
    assert head["submission_org"].time_ms == head["sgd_opt_momentum"].time_ms == int(BEGAN * 1000)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, b":::MLLOG {", None])
def test_mlperf_log_resume_without_log_starts_new_log(
    open_log: RunLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
):
    if damage is not None:
        (tmp_path / "mlperf.log").write_bytes(damage)
    with open_log() as log:
        log.resume(8, evaluated=True)
        train_epochs(log, 3, 4, top1=0.95)
    keys = [event.key for event in read_mllog(tmp_path / "mlperf.log")]
    assert keys.count("run_start") == keys.count("run_stop") == 1
    assert "missing or damaged" in caplog.text


def test_read_events_ignores_truncated_last_line(open_log: RunLog, tmp_path: Path):
    path = tmp_path / "mlperf.log"
    write_before(open_log, epochs=2, status=None)
    whole = read_events(path)
    with path.open("a") as file:
        file.write(format_line(whole[-1])[:40])
    assert read_events(path) == whole


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"mlperf__division": "closed", "eval__target": 0.5, "train__label_smoothing": 0.2}, ["not-closed"]),
        ({"mlperf__division": "closed"}, []),
        ({"eval__target": 0.5}, []),
        ({"eval__target": 0.5, "mlperf__division": "open"}, []),
    ],
)
def test_check_division_closed_with_violation_is_finding(changes: dict[str, object], codes: list[str]):
    found = check_division(load_mlperf(**changes), IMAGENET, Rank(0, 8))
    assert [one.code for one in found] == codes
    assert all("train.label_smoothing = 0.2, must be 0.1" in one.message for one in found)
