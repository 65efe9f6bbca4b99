"""Made-up run folders for tests: only result.json, of a run that a machine might have had."""

import json
from pathlib import Path
from typing import Any

from trainstone.config.load import load_config
from trainstone.files import dump_json
from trainstone.machine.health import Noise
from trainstone.results.schema import Device, Point, Process, Recipe, Result, Throughput, World

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
    """A bench of resnet50; no half_width means an interval that was not established."""
    config = load_config("resnet50", settings=[*RESOLVED, *settings])
    covers = "within this run" if half_width is not None else "not established: 13 steady steps, 50 needed"
    throughput = rate and Throughput(
        images_per_second=rate,
        ci95=None if half_width is None else (rate * (1 - half_width), rate * (1 + half_width)),
        ci_covers=covers,
        steady=True,
        steady_from_step=0,
        num_steps=100,
    )
    values: dict[str, Any] = {
        "kind": "bench",
        "run_id": run_id,
        "command": "trainstone bench",
        "status": "ok" if rate else "interrupted",
        "recipe": Recipe(name=config.name, version=config.version, sha256="0"),
        "process": Process(host=host, pid=1, started_utc="2026-01-01T00:00:00+00:00"),
        "world": World(ranks=ranks),
        "throughput": throughput,
        "noise": Noise(grade=grade, reasons=()) if grade else None,
        "devices": [Device(host=host, name=device, label="cpu")],
        "config": config.model_dump(mode="json", exclude_none=True),
        "machine": {"host": host, "cpu": {"model": device, "physical_cores": 2}},
        "software": {"trainstone": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7", **(software or {})},
    }
    return Result(**(values | changes))


def write_run(folder: Path, result: Result) -> Path:
    path = folder / result.run_id
    path.mkdir(parents=True)
    (path / "result.json").write_text(dump_json(result.model_dump(mode="json", exclude_none=True)))
    return path


def write_runs(folder: Path, name: str, rates: list[float], **features: Any) -> list[Path]:
    return [write_run(folder, make_result(f"{name}{i}", rate, **features)) for i, rate in enumerate(rates)]


def write_repeated(folder: Path, name: str, rates: list[float], **features: Any) -> Path:
    path = folder / name
    children = [make_result(f"{name}-child{i}", rate, **features) for i, rate in enumerate(rates)]
    for child in children:
        write_run(path / "points", child)
    points = [Point(label=f"seed {i}", run=f"points/{child.run_id}") for i, child in enumerate(children)]
    whole = make_result(name, 1.0, **features).model_copy(update={"points": points})
    (path / "result.json").write_text(dump_json(whole.model_dump(mode="json", exclude_none=True)))
    return path


def change_result(path: Path, **changes: object) -> None:
    document = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(document | changes))
