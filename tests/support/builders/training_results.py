"""A generated training run: 400 steps, an evaluation after each of 8 epochs, the last one reaches the target."""

import math
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import tomli_w

from support.builders.results import make_result, write_run
from trainstone.results.combine import StartedRun, assess_repeated, combine_trainings
from trainstone.results.run_folder import read_result
from trainstone.results.schema.quality import Evaluation, Quality, Repeated
from trainstone.results.schema.run import Phases, Point, Result
from trainstone.results.steps import StepRecord, StepWriter
from trainstone.results.training import is_complete
from trainstone.results.verdicts import format_training_verdict

STEPS_PER_EPOCH, EPOCHS, BATCH = 50, 8, 64
STEP_SECONDS, WAIT_SECONDS, EVAL_SECONDS, SAVE_SECONDS = 0.3, 0.02, 3.0, 0.4
FIRST_SEED = 7
TOP1 = (0.212, 0.405, 0.558, 0.667, 0.741, 0.826, 0.881, 0.924)


def make_steps() -> list[StepRecord]:
    """Return steps with falling, noisy losses and a cosine learning rate with one epoch of warm-up."""
    draw = random.Random(6)
    steps = []
    for step in range(STEPS_PER_EPOCH * EPOCHS):
        epoch = step // STEPS_PER_EPOCH
        loss = 0.3 + 2.2 * math.exp(-step / 130) + draw.gauss(0, 0.12) * math.exp(-step / 400)
        done = (step - STEPS_PER_EPOCH) / (STEPS_PER_EPOCH * (EPOCHS - 1))
        rate = 0.1 * (step / STEPS_PER_EPOCH if done < 0 else 0.5 * (1 + math.cos(math.pi * done)))
        start = step * STEP_SECONDS + epoch * (EVAL_SECONDS + SAVE_SECONDS)
        steps.append(StepRecord(step, epoch, start, WAIT_SECONDS, STEP_SECONDS, BATCH, loss, rate))
    return steps


def make_evaluations(values: tuple[float, ...] = TOP1) -> list[Evaluation]:
    return [
        Evaluation(
            epoch=epoch,
            step=epoch * STEPS_PER_EPOCH,
            seconds=epoch * (STEPS_PER_EPOCH * STEP_SECONDS + EVAL_SECONDS) + (epoch - 1) * SAVE_SECONDS,
            eval_seconds=EVAL_SECONDS,
            metrics={"top1": top1, "top5": 1 - (1 - top1) ** 2.2, "loss": 2.4 * (1 - top1) + 0.2},
            images=1000,
        )
        for epoch, top1 in enumerate(values, start=1)
    ]


def make_quality(**changes: Any) -> Quality:
    history = changes.pop("history", make_evaluations())
    best = max((found.metrics.get("top1", 0.0) for found in history), default=0.0)
    seconds, epochs = (history[-1].seconds, history[-1].epoch) if history else (None, 0.4)
    found = {"value": best, "seconds_to_target": seconds, "epochs": epochs, "history": history}
    given = {"metric": "top1", "target": 0.9, "global_batch": BATCH, "parameters": 11_180_103}
    return Quality(**(found | given | changes))


def make_phases() -> Phases:
    """Return the durations of steps, evaluations and checkpoints; the run took 170 s in total."""
    num_steps = STEPS_PER_EPOCH * EPOCHS
    return Phases(
        train_seconds=num_steps * STEP_SECONDS,
        data_wait_seconds=num_steps * WAIT_SECONDS,
        eval_seconds=EPOCHS * EVAL_SECONDS,
        checkpoint_seconds=EPOCHS * SAVE_SECONDS,
        program_seconds=170.0,
    )


def make_training(run_id: str = "train0", quality: Quality | None = None, **changes: Any) -> Result:
    quality = quality or make_quality()
    status = changes.get("status", "target_reached")
    verdict = format_training_verdict(quality, status, make_phases(), "ResNet-18")
    given = {"kind": "train", "command": "trainstone train", "status": status, "verdict": verdict}
    given |= {"quality": quality, "phases": make_phases()}
    return make_result(run_id, BATCH / STEP_SECONDS, **(given | changes))


def write_training(folder: Path, result: Result | None = None, steps: list[StepRecord] | None = None) -> Path:
    path = write_run(folder, result or make_training())
    with closing(StepWriter(path / "steps-rank0000.csv", split_phases=False)) as writer:
        for step in make_steps() if steps is None else steps:
            writer.add(step)
    return path


def make_child(seed: int, seconds: float | None, **changes: Any) -> StartedRun:
    """Return a run that reached its target after `seconds` (more seconds: more epochs), or missed it (None)."""
    epochs = len(TOP1) if seconds is None else min(len(TOP1), round(seconds / 10))
    values = [0.95 * value for value in TOP1] if seconds is None else [*TOP1[: epochs - 1], 0.9 + seed / 1000]
    scale = (seconds or 100.0) / make_evaluations(tuple(values))[-1].seconds
    history = [found.model_copy(update={"seconds": found.seconds * scale}) for found in make_evaluations(tuple(values))]
    quality = make_quality(history=history, seconds_to_target=seconds)
    status = changes.get("status", "target_missed" if seconds is None else "target_reached")
    given = {"status": status, "verdict": format_training_verdict(quality, status, None, "ResNet-18")}
    result = make_training(f"run-{seed}", quality, **(given | {"settings": (f"seed={seed}",)} | changes))
    return StartedRun(f"points/{result.run_id}", result)


def make_children(times: Sequence[float | None]) -> list[StartedRun]:
    return [make_child(FIRST_SEED + place, seconds) for place, seconds in enumerate(times)]


def make_repeated(children: Sequence[StartedRun], num_runs: int | None = None, **changes: Any) -> Result:
    requested = Repeated(num_runs=num_runs or len(children), first_seed=FIRST_SEED)
    parent = make_training(
        "parent", quality=None, throughput=None, repeated=requested, status="running", settings=(f"seed={FIRST_SEED}",)
    ).model_copy(update={"quality": None, "phases": None, "verdict": None})
    combined = parent.model_copy(update=combine_trainings(parent, children))
    points = [Point(label=f"seed {child.result.config['seed']}", run=child.folder) for child in children]
    target = combined.quality.target if combined.quality else None
    status = assess_repeated(combined.repeated, target) if is_complete(combined.repeated) else "interrupted"
    return combined.model_copy(update={"points": points, "status": status} | changes)


def write_repeated(folder: Path, times: Sequence[float | None], **changes: Any) -> Path:
    children = make_children(times)
    path = write_run(folder, make_repeated(children, **changes))
    (path / "config.toml").write_text(tomli_w.dumps(read_result(path).config))
    for child in children:
        write_training(path / "points", child.result)
    return path
