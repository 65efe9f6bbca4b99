"""Generated results of a bench, a data bench and a profile, and run folders with only result.json."""

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.processes.command import ROOT
from trainstone.config.load import load_config
from trainstone.files import dump_json
from trainstone.machine.noise import Noise
from trainstone.results.loader_speed import rate_per_core
from trainstone.results.schema.data_bench import DataBenchResult, Demand, Stage, ThreadPoint
from trainstone.results.schema.run import Device, Point, Process, Recipe, Result, Throughput, WorldSize
from trainstone.results.schema.timeline import Timeline

A100 = Demand(device="NVIDIA A100", devices=8, images_per_second=20_000, how="given")
HERE = Demand(device="a CPU", devices=1, images_per_second=5.1, how="resnet50, fp32, batch 16, measured here")
RESOLVED = ("train.batch_size=8", "train.precision=fp32", "engine.threads=2", "device=cpu")


def make_result(
    run_id: str,
    rate: float | None = 100.0,
    *,
    half_width: float | None = 0.01,
    host: str = "here",
    device: str = "Intel Xeon",
    grade: str | None = "B",
    ranks: int = 1,
    settings: tuple[str, ...] = (),
    software: dict[str, Any] | None = None,
    **changes: Any,
) -> Result:
    """Return a bench of resnet50; half_width None means no interval was established."""
    config = load_config("resnet50", settings=[*RESOLVED, *settings])
    covers = "within this run" if half_width is not None else "not established: 13 steady steps, 20 needed"
    ci95 = None if half_width is None or rate is None else (rate * (1 - half_width), rate * (1 + half_width))
    window = {"ci95": ci95, "ci_covers": covers, "steady": True, "steady_from_step": 0, "num_steps": 100}
    values: dict[str, Any] = {
        "kind": "bench",
        "run_id": run_id,
        "command": "trainstone bench",
        "status": "ok" if rate else "interrupted",
        "recipe": Recipe(name=config.name, version=config.version, sha256="0"),
        "process": Process(host=host, pid=1, started_utc="2026-01-01T00:00:00+00:00"),
        "world": WorldSize(ranks=ranks),
        "throughput": rate and Throughput(images_per_second=rate, **window),
        "noise": Noise(grade=grade, reasons=()) if grade else None,
        "devices": [Device(host=host, name=device, label="cpu")],
        "config": config.model_dump(mode="json", exclude_none=True),
        "machine": {"host": host, "cpu": {"model": device, "physical_cores": 2}},
        "software": {"trainstone": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7", **(software or {})},
    }
    return Result(**(values | changes))


def write_run(folder: Path, result: Result, children: Sequence[Result] = ()) -> Path:
    """Write the run folder of a result and of its points."""
    path = folder / result.run_id
    path.mkdir(parents=True)
    (path / "result.json").write_text(dump_json(result.model_dump(mode="json", exclude_none=True)))
    for child in children:
        write_run(path / "points", child)
    return path


def write_runs(folder: Path, name: str, rates: list[float], **features: Any) -> list[Path]:
    return [write_run(folder, make_result(f"{name}{i}", rate, **features)) for i, rate in enumerate(rates)]


def write_repeated(folder: Path, name: str, rates: list[float], **features: Any) -> Path:
    children = [make_result(f"{name}-child{i}", rate, **features) for i, rate in enumerate(rates)]
    points = [Point(label=f"seed {i}", run=f"points/{child.run_id}") for i, child in enumerate(children)]
    return write_run(folder, make_result(name, 1.0, **features, points=points), children)


def change_result(path: Path, **changes: object) -> None:
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(document | changes))


def make_point(threads: int, rate: float, cpu_cores: float | None = None, cores: int = 2, **changes) -> ThreadPoint:
    measured = {"images_per_second": rate, "ci95": (0.99 * rate, 1.01 * rate), "ci_covers": "within this run"}
    per_core = rate_per_core(rate, threads, cpu_cores, cores)
    return ThreadPoint(threads=threads, cpu_cores=cpu_cores, images_per_second_per_core=per_core, **measured | changes)


POINTS = [
    make_point(n, rate, busy, cores=4) for n, rate, busy in ((1, 600, 1), (2, 1190, 2), (4, 2200, 4), (8, 2400, 7.9))
]


def make_data_bench(points: list[ThreadPoint] | None = None, **changes) -> DataBenchResult:
    data = {"path": "data/set", "storage": "RecordIO", "split": "train", "images": 1200, "image_bytes": 2048.0}
    made = {"image_size": 224, "batch_size": 64, "transform": "random crop, flip", "decode": "simplejpeg"}
    measured = {
        "points": points or [make_point(1, 600), make_point(2, 1190)],
        "stages": [
            Stage(name="read", seconds_per_image=2e-4, share=0.1),
            Stage(name="decode", seconds_per_image=1.56e-3, share=0.78),
            Stage(name="batch", seconds_per_image=2.4e-4, share=0.12),
        ],
    }
    return DataBenchResult(**{**data, **made, **measured, "cpu": "a CPU", "cores": 2, "skipped": 0, **changes})


def make_timeline(kind: str = "cpu", **changes: Any) -> Timeline:
    """Return the timeline of a golden profile, `cpu` or `cuda`; one kernel name has 1,843 characters."""
    values = json.loads((ROOT / f"tests/golden/profiles/{kind}.json").read_text())
    return Timeline(**(values | changes))


def make_profile(timeline: Timeline | None = None) -> Result:
    timeline = timeline or make_timeline()
    running, device = ("operators", "Intel Xeon") if timeline.device == "cpu" else ("kernels", "NVIDIA A100")
    verdict = f"ResNet-50: {running} run for {100 * timeline.compute_utilisation:.1f} % of the step"
    values = {"kind": "profile", "command": "trainstone profile", "device": device, "verdict": verdict}
    return make_result("profile0", 8 / 1.7, timeline=timeline, **values)


def write_profile(folder: Path, timeline: Timeline | None = None) -> Path:
    path = write_run(folder, make_profile(timeline))
    (path / "trace").mkdir()
    (path / "trace/rank0000.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}', mtime=0))
    return path


def draw_ar1(seed: int, num: int, n: int, phi: float, *, skewed: bool = False) -> np.ndarray:
    """Draw series of step durations with autocorrelated noise of unit variance; skewed: exponential noise."""
    rng = np.random.default_rng(seed)
    kicks = rng.exponential(size=(num, n + 100)) - 1 if skewed else rng.standard_normal((num, n + 100))
    for step in range(1, n + 100):
        kicks[:, step] += phi * kicks[:, step - 1]
    return kicks[:, 100:] * math.sqrt(1 - phi**2)
