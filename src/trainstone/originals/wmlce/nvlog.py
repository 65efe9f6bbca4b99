"""Writer of the logs of NVIDIA's and IBM's TensorFlow ResNet-50: original/nvlog.txt and a JSON file.

train corresponds to their mode train_and_evaluate (training.json), bench to training_benchmark
(training_benchmark.json).
"""

import json
import logging
import math
from collections.abc import Iterable
from typing import Any

from trainstone.engine.training_data import order_images
from trainstone.files import write_atomically
from trainstone.formats import nvlog
from trainstone.machine.ranks import Rank
from trainstone.originals.output_file import OriginalFile, RunFacts, has_decay
from trainstone.results.schema.quality import Evaluation
from trainstone.results.schema.run import Status
from trainstone.results.steps import StepRecord
from trainstone.workloads.workload import choose_eval_batch

log = logging.getLogger(__name__)

DISPLAY_EVERY = 10
"""The original's default --display_every."""
MODEL = "resnet"
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
"""Other precisions compute on float32."""
TRAINING_KEYS = ("iteration", "imgs_per_sec", "cross_entropy", "l2_loss", "total_loss", "learning_rate")
EPOCH_KEYS = ("epoch", *(f"final_{key}" for key in TRAINING_KEYS[2:]))
BENCHMARK_KEYS = ("iteration", "total_ips")
EVALUATION_DECAY = "Decay Steps of an evaluation"
"""Logged as Decay Steps, but from another source line than the training's."""

# training_hooks.py 100 to 105 and runner.py 610, 611, 630 are from a surviving log of WMLCE; the others are about the
# lines of NVIDIA's program, which WMLCE is derived from.
LOGGED: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("resnet_v1_5.py", 79, ("Model HParams", "Name", "Number of classes", "Compute_format", "Input_format", "dtype")),
    ("runner.py", 161, ("Deterministic Run - Seed",)),
    ("runner.py", 225, (nvlog.XLA,)),
    ("runner.py", 374, (nvlog.STARTING_TRAINING, "Training Epochs", "Total Steps", "Steps per Epoch")),
    ("runner.py", 378, ("Decay Steps", "Weight Decay Factor", "Init Learning Rate", "Momentum", "Num GPUs")),
    ("runner.py", 383, ("Per-GPU Batch Size",)),
    ("runner.py", 468, (nvlog.SYNTHETIC,)),
    ("learning_rate.py", 47, (nvlog.COSINE,)),
    ("training_hooks.py", 100, TRAINING_KEYS),
    ("training_hooks.py", 112, EPOCH_KEYS),
    ("benchmark_hooks.py", 72, ("Average total_ips",)),
    ("runner.py", 487, (nvlog.ENDING_TRAINING,)),
    ("runner.py", 545, (nvlog.STARTING_EVALUATION, "Evaluation Epochs", "Evaluation Steps")),
    ("runner.py", 548, (EVALUATION_DECAY, "Global Batch Size")),
    ("runner.py", 610, ("Top-1 Accuracy", "Top-5 Accuracy")),
    ("runner.py", 630, (nvlog.ENDING_EVALUATION,)),
)
PLACES = {key: (file, line + number) for file, line, keys in LOGGED for number, key in enumerate(keys)}
"""Source file and line that log a key."""


class Nvlog(OriginalFile):
    """Writes log lines, and a JSON file of the same values: per epoch a list of iteration values, and epoch values.

    The JSON file is written after every epoch and at the end.
    """

    file = "nvlog.txt"
    json_file: str
    places = PLACES

    def __init__(self, facts: RunFacts, iteration_keys: Iterable[str], epoch_keys: Iterable[str] = ()) -> None:
        self.every = facts.choose_log_interval(DISPLAY_EVERY)
        self.first_steps = [0]
        """Origin of x in the JSON: the first step of each epoch, or the first step after the warm-up of a bench."""
        self._run: dict[str, Any] = {}
        self._iterations: dict[str, list[list[Any]]] = {key: [[]] for key in iteration_keys}
        self._epochs: dict[str, list[Any]] = {key: [] for key in epoch_keys}
        self.ended = facts.began
        """End of the last step or evaluation, in seconds since 1970."""
        super().__init__(facts)

    def format_entry(self, key: str, value: Any = None, *, model: str | None = MODEL, when: float | None = None) -> str:
        """Return a log line and keep its value for the JSON; its time is `when`, or the last event's."""
        place = self.places[key.partition(":")[0]]
        key = "Decay Steps" if key == EVALUATION_DECAY else key
        kept = None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN or infinity
        if key in self._iterations:
            self._iterations[key][-1].append(kept)
        elif key in self._epochs:
            self._epochs[key].append(kept)
        elif key in (nvlog.XLA, nvlog.SYNTHETIC, nvlog.COSINE):
            self._run[key] = None
        entry = nvlog.Entry(nvlog.VERSION, model, self.ended if when is None else when, *place, key, value)
        return f"{nvlog.format_line(entry)}\n"

    def render_start(self) -> str:
        """Return the header; its first lines have no model name, as in the original."""
        config = self.facts.config
        named = {
            nvlog.XLA: config.engine.compile,
            nvlog.SYNTHETIC: config.data.source == "synthetic",
            nvlog.COSINE: config.schedule.name == "cosine",
        }
        lines = [self.format_entry(key, value, model=None) for key, value in list_header_values(self.facts).items()]
        return "".join([*lines, *(self.format_entry(key) for key, true in named.items() if true)])

    def finish(self, status: Status) -> None:
        super().finish(status)
        self.write_json()

    def write_json(self) -> None:
        """Write the JSON file of all logged values."""
        epochs = zip(self._iterations["iteration"], self.first_steps, strict=True)
        document = {
            "run": self._run,
            "epoch": {"x": self._epochs.get("epoch", []), **self._epochs},
            "iter": {"x": [[step - first for step in steps] for steps, first in epochs], **self._iterations},
            "event": {},
        }
        write_atomically(self.path.with_name(self.json_file), json.dumps(document, indent=4, allow_nan=False))


class TrainingNvlog(Nvlog):
    """nvlog of a training run: lines every `every` steps, per epoch and per evaluation."""

    json_file = "training.json"

    def __init__(self, facts: RunFacts) -> None:
        self._is_over = False
        decays = has_decay(facts.config.optimizer)
        keys = ([key for key in kind if decays or "l2_loss" not in key] for kind in (TRAINING_KEYS, EPOCH_KEYS))
        super().__init__(facts, *keys)

    def step(self, record: StepRecord) -> None:
        before = len(self.first_steps)
        super().step(record)
        if len(self.first_steps) > before:
            self.write_json()

    def render_step(self, record: StepRecord) -> str:
        """Return the lines every `every` steps and after an epoch; l2_loss only if weight decay is in the loss."""
        self.ended = self.facts.began + record.start_seconds + record.step_seconds
        losses: dict[str, float] = {"cross_entropy": record.loss}
        if record.decay_loss is not None:
            losses = {"cross_entropy": record.loss - record.decay_loss, "l2_loss": record.decay_loss}
        losses |= {"total_loss": record.loss, "learning_rate": record.lr}
        text = []
        if record.step % self.every == 0:
            text.append(self.format_entry("iteration", record.step))
            if record.step_seconds > 0:
                text.append(self.format_entry("imgs_per_sec", self.facts.global_batch / record.step_seconds))
            text += [self.format_entry(key, value) for key, value in losses.items()]
        done = record.step + 1
        over = self._count_epochs(done)
        if over > self._count_epochs(record.step):
            text.append(self.format_entry("epoch", over - 1))
            text += [self.format_entry(f"final_{key}", value) for key, value in losses.items()]
            self.first_steps.append(done)
            for lists in self._iterations.values():
                lists.append([])
        return "".join(text)

    def _count_epochs(self, done: int) -> int:
        """Return the number of completed epochs; an epoch has at least one step.

        An epoch ends with its last full step. The original's rule, global_batch x (step + 1) > (epoch + 1) x images
        with steps from 0, becomes true one step later, at the first step of the next epoch.
        """
        return min(done, ((done + 1) * self.facts.global_batch - 1) // self.facts.train_images)

    def render_evaluation(self, evaluation: Evaluation) -> str:
        facts = self.facts
        self.ended = facts.began + evaluation.seconds
        began, config = self.ended - evaluation.eval_seconds, facts.config
        batch = facts.ranks * choose_eval_batch(config)
        steps = math.ceil(evaluation.images / batch)
        is_last = facts.steps is not None and evaluation.step >= facts.steps
        text = [self._end_training(began)] if is_last else []
        text.append(self.format_entry(nvlog.STARTING_EVALUATION, when=began))
        block = {"Evaluation Epochs": 1, "Evaluation Steps": steps, EVALUATION_DECAY: steps, "Global Batch Size": batch}
        text += [self.format_entry(key, value, when=began) for key, value in block.items()]
        for name, title in (("top1", "Top-1 Accuracy"), ("top5", "Top-5 Accuracy")):
            if name in evaluation.metrics:
                text.append(self.format_entry(f"{title}: {100 * evaluation.metrics[name]:.3f}"))
        return "".join([*text, self.format_entry(nvlog.ENDING_EVALUATION)])

    def render_end(self, status: Status) -> str:  # noqa: ARG002
        """Return the line that ends training, unless it was written before the last evaluation."""
        return self._end_training()

    def _end_training(self, when: float | None = None) -> str:
        was_over, self._is_over = self._is_over, True
        return "" if was_over else self.format_entry(nvlog.ENDING_TRAINING, when=when)


class BenchmarkNvlog(Nvlog):
    """nvlog of a bench: rates after the warm-up, and their average.

    If a run ends during its warm-up, the first half of its steps counts as warm-up and all lines come at the end.
    """

    json_file = "training_benchmark.json"
    places = PLACES | {key: ("benchmark_hooks.py", 65 + number) for number, key in enumerate(BENCHMARK_KEYS)}

    def __init__(self, facts: RunFacts) -> None:
        warm_up = facts.config.original.warm_up_steps
        self._warm_up = warm_up if facts.steps is None else min(warm_up, facts.steps // 2)
        self._early: list[StepRecord] = []
        self._counted, self._seconds, self._rates = 0, 0.0, 0.0
        super().__init__(facts, BENCHMARK_KEYS)

    def render_step(self, record: StepRecord) -> str:
        """Return the lines of a step after the warm-up, every `every` steps."""
        if record.step < self._warm_up:
            self._early.append(record)
            return ""
        if record.step_seconds <= 0:
            return ""
        self.ended = self.facts.began + record.start_seconds + record.step_seconds
        rate, text = self.facts.global_batch / record.step_seconds, ""
        if not self._counted:
            self.first_steps = [record.step]
        if self._counted % self.every == 0:
            text = self.format_entry("iteration", record.step) + self.format_entry("total_ips", rate)
        self._counted += 1
        self._seconds += record.step_seconds
        self._rates += rate
        return text

    def render_end(self, status: Status) -> str:  # noqa: ARG002
        """Return the average: images / time, or the original's mean of rates with original_defects."""
        text = ""
        if not self._counted:
            self._warm_up = len(self._early) // 2
            text = "".join(map(self.render_step, self._early[self._warm_up :]))
        log.info("nvlog.txt averages %d steps after %d warm-up steps", self._counted, self._warm_up)
        if self._counted:
            right = self.facts.global_batch * self._counted / self._seconds
            mean = self._rates / self._counted
            text += self.format_entry("Average total_ips", mean if self.facts.config.original_defects else right)
        return text + self.format_entry(nvlog.ENDING_TRAINING)


def list_header_values(facts: RunFacts) -> dict[str, Any]:
    """Return the header's keys and values without a model name: network, then training; unknown ones are skipped."""
    config, epochs = facts.config, facts.config.stop.epochs
    steps_per_epoch = max(1, count_epoch_images(facts, facts.train_images) // facts.global_batch)
    values: dict[str, Any] = {
        "Model HParams:": None,
        "Name": f"{config.model.name}{config.model.depth}_v1.5",
        "Number of classes": config.model.num_classes,
        "Compute_format": "NHWC" if config.engine.channels_last else "NCHW",
        "Input_format": "NHWC",
        "dtype": f"<dtype: '{DTYPES.get(config.train.precision, 'float32')}'>",
        f"Deterministic Run - Seed: {config.seed}": None,
        nvlog.STARTING_TRAINING: None,
    }
    if facts.steps is not None:
        started = math.ceil(facts.steps / steps_per_epoch)
        epochs = started if facts.kind == "bench" else min(started, epochs)
    if facts.steps is not None or facts.kind == "train":
        values["Training Epochs"] = int(epochs) if epochs == int(epochs) else epochs
    if facts.steps is not None:
        values["Total Steps"] = facts.steps
    # Decay Steps: of the whole schedule, as engine/lr_schedule.py counts them.
    images = count_epoch_images(facts, config.schedule.images or facts.train_images)
    return values | {
        "Steps per Epoch": float(steps_per_epoch),  # the original logs a float
        "Decay Steps": round(images / facts.global_batch * config.stop.epochs),
        "Weight Decay Factor": config.optimizer.weight_decay,
        "Init Learning Rate": config.optimizer.learning_rate,
        "Momentum": config.optimizer.momentum,
        "Num GPUs": facts.ranks,
        "Per-GPU Batch Size": config.train.batch_size,
    }


def count_epoch_images(facts: RunFacts, images: int) -> int:
    """Return the images of an epoch over a data set of `images`: the last batch may be dropped or filled up."""
    return order_images(facts.config, images, Rank(0, facts.ranks)).epoch_images
