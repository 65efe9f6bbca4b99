"""A made-up training run: 400 steps, an evaluation after each of 8 epochs, the target reached by the last."""

import math
import random
from contextlib import closing
from pathlib import Path
from typing import Any

from made_results import make_result, write_run
from trainstone.results.quality import Evaluation, Quality
from trainstone.results.schema import Phases, Result
from trainstone.results.steps import StepRecord, StepWriter
from trainstone.results.verdicts import write_learning_verdict

STEPS_PER_EPOCH, EPOCHS, BATCH = 50, 8, 64
STEP_SECONDS, WAIT_SECONDS, EVAL_SECONDS, SAVE_SECONDS = 0.3, 0.02, 3.0, 0.4
TOP1 = (0.212, 0.405, 0.558, 0.667, 0.741, 0.826, 0.881, 0.924)


def make_steps() -> list[StepRecord]:
    """Losses fall and scatter; the rate warms up over an epoch and falls as a cosine; evaluations lie between."""
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
    values: dict[str, Any] = {
        "metric": "top1",
        "value": max((found.metrics.get("top1", 0.0) for found in history), default=0.0),
        "target": 0.9,
        "seconds_to_target": history[-1].seconds if history else None,
        "epochs": history[-1].epoch if history else 0.4,
        "history": history,
        "global_batch": BATCH,
        "parameters": 11_180_103,
    }
    return Quality(**(values | changes))


def make_phases() -> Phases:
    """What the steps, evaluations and checkpoints of the run took, of 170 s in all."""
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
    given = {
        "kind": "train",
        "status": status,
        "quality": quality,
        "phases": make_phases(),
        "verdict": write_learning_verdict(quality, status, make_phases(), "ResNet-18"),
        "command": "trainstone train",
    }
    return make_result(run_id, BATCH / STEP_SECONDS, **(given | changes))


def write_training(folder: Path, result: Result | None = None, steps: list[StepRecord] | None = None) -> Path:
    path = write_run(folder, result or make_training())
    with closing(StepWriter(path / "steps-rank0000.csv", split_phases=False)) as writer:
        for step in make_steps() if steps is None else steps:
            writer.add(step)
    return path
