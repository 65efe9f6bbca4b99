"""Run facts, steps and evaluations for tests of the originals' files, and a simulated run that writes them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainstone.config.load import load_config
from trainstone.measure.recorder import StepRecorder
from trainstone.originals.output_file import RunFacts, has_decay
from trainstone.originals.registry import list_writers
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord

BEGAN = 1605627653.25
FIRST_START, STEP_SECONDS, EVAL_SECONDS = 3.0, 0.5, 4.0
METRICS = {"top1": 37871 / 49920, "top5": 46337 / 49920, "loss": 1.25}


def make_facts(folder: Path, name: str, *settings: str, kind: str = "train", **changes: Any) -> RunFacts:
    """Return run facts of an original's recipe: 4 ranks x 256 images, 10 steps per epoch, 5 epochs."""
    config = load_config("ssd300-mlperf" if name == "mlperf_ssd" else f"resnet50-{name}", settings=settings)
    place = {"kind": kind, "config": config, "folder": folder, "began": BEGAN, "ranks": 4, "device": 2}
    return RunFacts(**place | {"global_batch": 1024, "train_images": 10240, "steps": 50} | changes)


def make_step(step: int, evaluations: Sequence[int] = (), **changes: Any) -> StepRecord:
    """Return a step of half a second with 256 images; its start accounts for earlier steps and evaluations."""
    start = FIRST_START + STEP_SECONDS * step + EVAL_SECONDS * sum(evaluated <= step for evaluated in evaluations)
    record = StepRecord(step, step // 10, start, 0.125, STEP_SECONDS, 256, 9.5 - step / 64, step / 128)
    phases = {"forward_seconds": 0.125, "backward_seconds": 0.0625 * (1 + step), "optimizer_seconds": 0.0}
    return record._replace(**{"decay_loss": 0.75, **phases, **changes})


def make_evaluation(step: int, evaluations: Sequence[int] = ()) -> Evaluation:
    over = make_step(step - 1, evaluations).start_seconds + STEP_SECONDS + EVAL_SECONDS
    return Evaluation(epoch=step / 10, step=step, seconds=over, eval_seconds=EVAL_SECONDS, metrics=METRICS, images=512)


def resume(facts: RunFacts, first: int, evaluations: Sequence[int] = ()) -> RunFacts:
    history = tuple(make_evaluation(step, evaluations) for step in evaluations if step <= first)
    return replace(facts, first_step=first, history=history)


def simulate_run(
    facts: RunFacts, last: int, *, status: Status | None = "ok", evaluations: Sequence[int] = (), **changes: Any
) -> None:
    """Simulate a run up to before step `last`: write step file and original files. status None: the run is killed."""
    facts.folder.mkdir(parents=True, exist_ok=True)
    recorder = StepRecorder(
        facts.folder / "steps-rank0000.csv",
        split_phases=facts.config.engine.split_phases,
        decay_loss=facts.kind == "train" and has_decay(facts.config.optimizer),
        first_step=facts.first_step,
    )
    if not facts.config.engine.split_phases:
        changes |= dict.fromkeys(("forward_seconds", "backward_seconds", "optimizer_seconds"))
    with ExitStack() as files:
        sinks = [files.enter_context(sink) for sink in (recorder, *list_writers(facts))]
        for step in range(facts.first_step, last):
            for sink in sinks:
                sink.step(make_step(step, evaluations, **changes))
            for sink in sinks if step + 1 in evaluations else ():
                sink.evaluation(make_evaluation(step + 1, evaluations))
        for sink in sinks if status else ():
            sink.finish(status)


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in (folder / "original").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder / "original")): path.read_bytes() for path in files}
