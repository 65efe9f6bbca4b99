"""A generated run of every kind with a report page, optionally with hostile text in every text field.

The detection run has COCO's twelve metrics over eight evaluations, tables of real scores and four images with boxes.
Also a data set summary as in `data info`.
"""

import base64
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from support.builders.boxes import draw_boxes
from support.builders.hostile_text import HOSTILE
from support.builders.mlperf_logs import write_mlperf_runs
from support.builders.results import (
    A100,
    POINTS,
    make_data_bench,
    make_result,
    make_timeline,
    write_profile,
    write_run,
    write_runs,
)
from support.builders.sweeps import make_row, make_sweep, steps_of
from support.builders.training_results import (
    make_evaluations,
    make_quality,
    make_training,
    write_repeated,
    write_training,
)
from support.processes.command import copy_golden
from trainstone.formats.coco import NAME_OF_ID
from trainstone.report.view import RunView, read_view
from trainstone.results.coco_metrics import METRICS, list_tables, score_boxes
from trainstone.results.combine import combine_sweep
from trainstone.results.compare import compare
from trainstone.results.schema import dataset
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.quality import Quality, QualitySample, QualityTable, ShownBox
from trainstone.results.schema.run import LoaderResult
from trainstone.results.schema.sweep import Sweep
from trainstone.results.verdicts import format_data_verdict

FULL = make_row(128, status="out_of_memory", note="out of memory: it is large", order=9)
BATCHES = [*steps_of(0.03, 0.02, 1, 2, 4, 8, 16, 32), FULL]
CURVES = [make_row(b, b * r, curve=c, profile="failed") for c, r in (("fp32", 1.0), ("bf16", 2.0)) for b in (1, 2, 4)]
OF_CURVES = {"curve_key": "train.precision", "curves": ["fp32", "bf16"]}
CHOICES = [make_row("fp32", 1.0), make_row("bf16", 2.0), make_row("x")]
TIMES = (41.0, 38.0, 47.0, 40.0, 42.6)
MISSED = make_quality(history=make_evaluations((0.3, 0.612, 0.55)), target=0.65, seconds_to_target=None)
KEPT = ("run", "run_id", "started_utc", "file", "trace", "host", "jpeg_base64")
"""Keys without hostile text: names of folders and files, which have their own tests."""
MAPS = (0.031, 0.062, 0.094, 0.131, 0.158, 0.187, 0.212, 0.2317)
NAMES = list(NAME_OF_ID.values())
SIZES = ((640, 427), (640, 480), (427, 640), (500, 333))
LABELS = ("sheep", "car", "kite", "boat", "dog")
# One grey pixel
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU"
    "GBIUFRT/wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAACf/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AKp//2Q=="
)


def write_sweep(folder: Path, sweep: Sweep, **changes: Any) -> Path:
    children, rows = [], []
    for place, row in enumerate(sweep.rows):
        if row.images_per_second:
            children.append(make_result(f"point-{place}", row.images_per_second, verdict="ResNet-50: x"))
        rows.append(row.model_copy(update={"run": f"points/point-{place}" if row.images_per_second else ""}))
    concluded = combine_sweep(sweep.model_copy(update={"rows": rows}), children)
    # A running run of this host without its process is shown as killed.
    host = socket.gethostname() if changes.get("status") == "running" else "here"
    values = {"kind": "sweep", "status": "ok", "host": host} | concluded | changes
    return write_run(folder, make_result("swept", None, **values), children)


def write_data_bench(folder: Path, measured: DataBenchResult) -> Path:
    values = {"kind": "data", "status": "ok", "grade": None, "verdict": format_data_verdict(measured, "ResNet-50")}
    return write_run(folder, make_result("set", None, data_bench=measured, **values))


def write_compared(folder: Path) -> Path:
    a = write_runs(folder, "a", [100.0, 101.0, 103.0])
    b = write_runs(folder, "b", [90.0, 91.0, 93.0], host="there", grade="C")
    found, _ = compare([str(path) for path in a], [*map(str, b), "a10-lambda-amp"])
    return write_run(folder, make_result("compared", None, status="ok", comparison=found, verdict=found.verdict))


def write_loader_run(folder: Path) -> Path:
    measured = {"images_per_second": 400.0, "ci95": (390.0, 410.0), "data_bound": False}
    synthetic = {"synthetic_images_per_second": 100.0, "synthetic_ci95": (99.0, 101.0)}
    stored = {"threads": 2, "engine": "threads", "images": 1000, "storage": "RecordIO", "digest": "x"}
    stages = {"stage_seconds_per_image": {"read": 1e-3, "decode": 3e-3}}
    return write_run(
        folder, make_result("loader", 90.0, loader=LoaderResult(**measured, **synthetic, **stored, **stages))
    )


def draw_shown_boxes(number: int) -> list[ShownBox]:
    """Draw ground-truth boxes, the first one missed, and detections: one duplicate and one of a wrong class."""
    random, things = np.random.default_rng(number), []
    for label in random.choice(LABELS, 3 + number):
        w, h = random.uniform(0.09, 0.3, 2)
        left, top = random.uniform(0.02, 0.97 - w), random.uniform(0.02, 0.97 - h)
        things.append((str(label), (left, top, left + w, top + h)))
    random = np.random.default_rng(50 + number)
    shown = [box_of(label, edges, correct=place > 0) for place, (label, edges) in enumerate(things)]
    for place, (label, edges) in enumerate(things[1:]):
        near = tuple(np.clip(np.array(edges) + random.normal(0, 0.012, 4), 0, 1))
        shown.append(box_of(label, near, score=float(0.97 - 0.18 * place), correct=True))
    label, edges = things[1]
    moved = tuple(np.clip(np.array(edges) + 0.05, 0, 1))
    shown.append(box_of("dog" if label != "dog" else "cow", moved, score=0.44, correct=False))
    return [*shown, box_of("bird", (0.01, 0.01, 0.12, 0.1), score=0.12, correct=False)]


def box_of(label: str, edges: tuple[float, ...], **more: Any) -> ShownBox:
    left, top, right, bottom = edges
    return ShownBox(label=label, left=left, top=top, right=right, bottom=bottom, **more)


@cache
def make_tables() -> list[QualityTable]:
    """Return tables of real scores of generated boxes with 80 classes."""
    truth, found = draw_boxes(np.random.default_rng(3), num_images=120, num_classes=81, true=2500, found=9000)
    return list_tables(score_boxes(truth, found, images=np.arange(120), num_classes=81), NAMES)


def make_detection_quality(**changes: Any) -> Quality:
    """Return the quality of eight evaluations; the last reaches the target of 0.23."""
    history = [
        found.model_copy(update={"metrics": {name: value * (1.7 if "50" in name else 1.0) for name in METRICS}})
        for found, value in zip(make_evaluations(MAPS), MAPS, strict=True)
    ]
    given = {
        "metric": "map", "value": MAPS[-1], "target": 0.23, "seconds_to_target": history[-1].seconds,
        "epochs": history[-1].epoch, "history": history, "tables": make_tables(), "samples": make_images(),
    }  # fmt: skip
    return Quality(**(given | changes))


@cache
def make_images() -> list[QualitySample]:
    return [
        QualitySample(
            file=f"samples/{number:012}.jpg", title=f"{number:012}.jpg", width=SIZES[number][0],
            height=SIZES[number][1], boxes=draw_shown_boxes(number),
        )
        for number in range(len(SIZES))
    ]  # fmt: skip


def write_detection(folder: Path, quality: Quality | None = None, **changes: Any) -> Path:
    path = write_training(folder, make_training(quality=quality or make_detection_quality(), **changes))
    (path / "samples").mkdir()
    for number in range(len(SIZES)):
        (path / f"samples/{number:012}.jpg").write_bytes(base64.b64decode(JPEG))
    return path


def make_split(name: str, counts: list[int], **changes) -> dataset.SplitSummary:
    spread = {
        what: dataset.Quantiles(
            minimum=low, p5=low, median=(low + high) / 2, p95=high, maximum=high, mean=(low + high) / 2
        )
        for what, low, high in (("width", 300, 500), ("height", 200, 400), ("bytes", 1000, 3000))
    }
    sizes = [dataset.SizeCount(width=w, height=h, images=n) for w, h, n in ((500, 375, 4), (300, 200, 1))]
    looked = dataset.SampledImages(images=5, **spread, kinds={"jpeg": 4, "png": 1}, colours={"rgb": 5}, sizes=sizes)
    given = {"records": sum(counts), "counted": sum(counts), "sampled": looked, **changes}
    return dataset.SplitSummary(name=name, class_counts=counts, **given)


def make_summary(num_classes: int = 3, *, detect: bool = False) -> dataset.DatasetSummary:
    text, counts = "thing", [number % 7 + 1 for number in range(num_classes)]
    boxes = dataset.BoxCounts(boxes=sum(counts), images=4, per_image={0: 1, 2: 2, 90: 1}) if detect else None
    bad = [dataset.BadRecord(where=f"{text}.rec, byte 8", why=text)]
    box = dataset.SampleBox(text=text, left=0.25, top=0, right=0.75, bottom=1, crowd=True)
    sample = {"split": "train", "name": text, "label": text, "width": 40, "height": 20, "jpeg_base64": JPEG}
    return dataset.DatasetSummary(
        path=text,
        kind="detect" if detect else "classify",
        storage=text,
        name=text,
        classes=[dataset.ClassSummary(name=f"n{number}", text=f"{text} {number}") for number in range(num_classes)],
        splits=[
            make_split("train", counts, boxes=boxes, num_bad=1, bad=bad, shards=2, bytes=2**20),
            make_split("val", counts, boxes=boxes, outside=3, unlabelled=4),
        ],
        samples=[dataset.DatasetSample(**sample, boxes=[box])],
    )


KINDS: dict[str, Callable[[Path], Path]] = {
    "bench": lambda folder: copy_golden(folder, "good"),
    "killed": lambda folder: copy_golden(folder, "killed"),
    "throttled": lambda folder: copy_golden(folder, "throttled"),
    "ten-ranks": lambda folder: copy_golden(folder, "ten-ranks"),
    "loader": write_loader_run,
    "compared": write_compared,
    "sweep": lambda folder: write_sweep(folder, make_sweep(*BATCHES)),
    "sweep-curves": lambda folder: write_sweep(folder, make_sweep(*CURVES, profile=True, **OF_CURVES)),
    "sweep-choice": lambda folder: write_sweep(folder, make_sweep(*CHOICES, key="train.precision")),
    "train": write_training,
    "train-missed": lambda folder: write_training(folder, make_training(quality=MISSED, status="target_missed")),
    "detect": write_detection,
    "runs": lambda folder: write_repeated(folder, TIMES),
    "runs-mlperf": write_mlperf_runs,
    "data": lambda folder: write_data_bench(folder, make_data_bench(POINTS, cores=4, demand=A100, skipped=3)),
    "profile": write_profile,
    "profile-cuda": lambda folder: write_profile(folder, make_timeline("cuda")),
}


def make_view(kind: str, folder: Path, *, hostile: bool = False) -> RunView:
    view = read_view(KINDS[kind](folder))
    return RunView(view.path, poison(view.result), view.page_folder) if hostile else view


def poison(model: Any) -> Any:
    """Append hostile text to every text field of a record; fields whose type rejects it are unchanged."""
    clean = model.model_dump(mode="json", exclude_none=True)
    evil = _poison(clean)
    for _ in range(20):
        try:
            return type(model).model_validate(evil)
        except ValidationError as error:
            for fault in error.errors():
                _restore(evil, clean, fault["loc"])
    raise AssertionError("the record stays invalid")


def _poison(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        named = {"metrics": HOSTILE, "pipes_percent": HOSTILE, "machine": HOSTILE}.get(key, "")
        return {f"{name}{named}": _poison(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_poison(inner, key) for inner in value]
    return value + HOSTILE if isinstance(value, str) and key not in KEPT else value


def _restore(evil: Any, clean: Any, place: tuple[int | str, ...]) -> None:
    """Restore the text that a record rejected; deeper parts of `place` name its type, not a key."""
    for depth, step in enumerate(place):
        if not isinstance(clean, dict | list) or (isinstance(clean, dict) and step not in clean):
            return
        if not isinstance(clean[step], dict | list) or depth == len(place) - 1:
            evil[step] = clean[step]
            return
        evil, clean = evil[step], clean[step]
