"""Made-up runs of train --runs: a parent folder with children that took the times one gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from made_learning import TOP1, make_evaluations, make_quality, make_training, write_training
from made_results import write_run
from trainstone.results.combine import BegunRun, combine_trainings, judge_repeated
from trainstone.results.learning import is_complete
from trainstone.results.quality import Repeated
from trainstone.results.schema import Point, Result
from trainstone.results.store import read_result
from trainstone.results.verdicts import write_learning_verdict

FIRST_SEED = 7


def make_child(seed: int, seconds: float | None, **changes: Any) -> BegunRun:
    """A run that reached its target after so many seconds, in the more epochs the longer it took; None: it missed."""
    epochs = len(TOP1) if seconds is None else min(len(TOP1), round(seconds / 10))
    values = [0.95 * value for value in TOP1] if seconds is None else [*TOP1[: epochs - 1], 0.9 + seed / 1000]
    scale = (seconds or 100.0) / make_evaluations(tuple(values))[-1].seconds
    history = [found.model_copy(update={"seconds": found.seconds * scale}) for found in make_evaluations(tuple(values))]
    quality = make_quality(history=history, seconds_to_target=seconds)
    status = changes.get("status", "target_missed" if seconds is None else "target_reached")
    given = {"status": status, "verdict": write_learning_verdict(quality, status, None, "ResNet-18")}
    result = make_training(f"run-{seed}", quality, **(given | {"settings": (f"seed={seed}",)} | changes))
    return BegunRun(f"points/{result.run_id}", result)


def make_children(times: Sequence[float | None]) -> list[BegunRun]:
    return [make_child(FIRST_SEED + place, seconds) for place, seconds in enumerate(times)]


def make_repeated(children: Sequence[BegunRun], num_runs: int | None = None, **changes: Any) -> Result:
    asked = Repeated(num_runs=num_runs or len(children), first_seed=FIRST_SEED)
    parent = make_training(
        "parent", quality=None, throughput=None, repeated=asked, status="running", settings=(f"seed={FIRST_SEED}",)
    ).model_copy(update={"quality": None, "phases": None, "verdict": None})
    combined = parent.model_copy(update=combine_trainings(parent, children))
    points = [Point(label=f"seed {child.result.config['seed']}", run=child.folder) for child in children]
    target = combined.quality.target if combined.quality else None
    status = judge_repeated(combined.repeated, target) if is_complete(combined.repeated) else "interrupted"
    return combined.model_copy(update={"points": points, "status": status} | changes)


def write_repeated(folder: Path, times: Sequence[float | None], **changes: Any) -> Path:
    children = make_children(times)
    path = write_run(folder, make_repeated(children, **changes))
    (path / "config.toml").write_text(tomli_w.dumps(read_result(path).config))
    for child in children:
        write_training(path / "points", child.result)
    return path
