"""Made-up trainings with the mlperf.log that the real writer wrote: what `trainstone mlperf` takes."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from made_learning import make_training
from made_mlperf import write_closed_log
from made_results import write_run
from trainstone.files import dump_json
from trainstone.results.schema import Point

SHORTEST_MINUTES = 27.0
MINUTES = (30.0, 28.0, 29.0, 27.0, 40.0)


@cache
def make_log(**changes: Any) -> str:
    """Let the real writer write a log, once for all tests: it takes a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mlperf.log"
        write_closed_log(path, seed=1, minutes=SHORTEST_MINUTES, **changes)
        return path.read_text()


def closed_log(seed: int = 1, minutes: float = 28.0, **changes: Any) -> str:
    """The same with another seed and another end."""
    events = [json.loads(line.partition(" ")[2]) for line in make_log(**changes).splitlines()]
    (start,) = (event["time_ms"] for event in events if event["key"] == "run_start")
    for event in events:
        if event["key"] == "seed":
            event["value"] = seed
        if event["key"] == "run_stop":
            event["time_ms"] = start + round(60_000 * minutes)
    return "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)


def write_mlperf_run(folder: Path, seed: int, minutes: float = 28.0, **changes: Any) -> Path:
    """A run folder of one training, named run-<seed>."""
    path = write_run(folder, make_training(f"run-{seed}", settings=(f"seed={seed}",)))
    (path / "mlperf.log").write_text(closed_log(seed, minutes, **changes))
    return path


def write_mlperf_runs(
    folder: Path, seeds: Sequence[int] = (1, 2, 3, 4, 5), minutes: Sequence[float] = MINUTES, **changes: Any
) -> Path:
    """What train --runs leaves: a folder with its runs under points/."""
    path = folder / "repeated"
    children = [
        write_mlperf_run(path / "points", seed, time, **changes) for seed, time in zip(seeds, minutes, strict=True)
    ]
    points = [
        Point(label=f"seed {seed}", run=f"points/{child.name}") for seed, child in zip(seeds, children, strict=True)
    ]
    whole = make_training("repeated").model_copy(update={"points": points})
    (path / "result.json").write_text(dump_json(whole.model_dump(mode="json", exclude_none=True)))
    return path
