"""nvlog.txt and the JSON beside it: each thing said goes into both. What to say is in nvlog.py."""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainstone.files import write_atomically
from trainstone.formats.nvlog import (
    COSINE,
    ENDING_EVALUATION,
    ENDING_TRAINING,
    STARTING_EVALUATION,
    STARTING_TRAINING,
    SYNTHETIC,
    VERSION,
    XLA,
    Entry,
    format_line,
)
from trainstone.train.original.lines import LineFile

MODEL = "resnet"
TRAINING_KEYS = ("iteration", "imgs_per_sec", "cross_entropy", "l2_loss", "total_loss", "learning_rate")
EPOCH_KEYS = ("epoch", *(f"final_{key}" for key in TRAINING_KEYS[2:]))
BENCHMARK_KEYS = ("iteration", "total_ips")


EVALUATION_DECAY = "Decay Steps of an evaluation"
"""Said as Decay Steps, at another line than the training's."""


def _place(file: str, first_line: int, *keys: str) -> dict[str, tuple[str, int]]:
    return {key: (file, first_line + number) for number, key in enumerate(keys)}


# training_hooks.py 100 to 105 and runner.py 610, 611, 630 stand in a surviving log of WMLCE; the others are about where
# NVIDIA's program, which it was made of, has them.
PLACES = {
    **_place("resnet_v1_5.py", 79, "Model HParams:", "Name", "Number of classes", "Compute_format", "Input_format"),
    **_place("resnet_v1_5.py", 84, "dtype"),
    **_place("runner.py", 161, "Deterministic Run - Seed"),
    **_place("runner.py", 225, XLA),
    **_place("runner.py", 374, STARTING_TRAINING, "Training Epochs", "Total Steps", "Steps per Epoch", "Decay Steps"),
    **_place("runner.py", 379, "Weight Decay Factor", "Init Learning Rate", "Momentum", "Num GPUs"),
    **_place("runner.py", 383, "Per-GPU Batch Size"),
    **_place("runner.py", 468, SYNTHETIC),
    **_place("learning_rate.py", 47, COSINE),
    **_place("training_hooks.py", 100, *TRAINING_KEYS),
    **_place("training_hooks.py", 112, *EPOCH_KEYS),
    **_place("runner.py", 487, ENDING_TRAINING),
    **_place("runner.py", 545, STARTING_EVALUATION, "Evaluation Epochs", "Evaluation Steps"),
    **_place("runner.py", 548, EVALUATION_DECAY, "Global Batch Size"),
    **_place("runner.py", 610, "Top-1 Accuracy", "Top-5 Accuracy"),
    **_place("runner.py", 630, ENDING_EVALUATION),
}
BENCHMARK_PLACES = {
    **PLACES,
    **_place("benchmark_hooks.py", 65, *BENCHMARK_KEYS),
    **_place("benchmark_hooks.py", 72, "Average total_ips"),
}


class NvlogFile:
    """Both files of a run. The JSON has lists: of an epoch each of what is said of iterations, one of epochs."""

    def __init__(
        self,
        folder: Path,
        json_name: str,
        iteration_keys: Iterable[str],
        epoch_keys: Iterable[str] = (),
        *,
        places: Mapping[str, tuple[str, int]] = PLACES,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._json, self._places, self._wall = folder / json_name, places, wall
        self._file = LineFile(folder / "nvlog.txt", now=now)
        self.is_new = True
        self._run: dict[str, Any] = {}
        self._iterations: dict[str, list[list[Any]]] = {key: [[]] for key in ("x", *iteration_keys)}
        self._epochs: dict[str, list[Any]] = {key: [] for key in ("x", *epoch_keys)}
        self.first_step = 0
        """Which x counts from: an epoch's first, or the first behind the warm-up of a bench."""

    def say(self, key: str, value: Any = None, *, model: str | None = MODEL, when: float | None = None) -> None:
        """Write a line, of now unless `when` says otherwise."""
        place = self._places.get(key) or self._places[key.partition(":")[0]]
        key = "Decay Steps" if key == EVALUATION_DECAY else key
        entry = Entry(VERSION, model, self._wall() if when is None else when, *place, key, value)
        self._file.write(f"{format_line(entry)}\n")
        self._take(entry)

    def take_up(self, entry: Entry, end: int) -> None:
        """Take in a line of an earlier start, which ended at that byte: later ones are written behind it."""
        self.is_new = False
        self._file.keep_bytes = end
        self._take(entry)

    def _take(self, entry: Entry) -> None:
        value = entry.value
        if isinstance(value, float) and not math.isfinite(value):
            value = None  # JSON has no word for it
        if entry.key in self._iterations:
            self._iterations[entry.key][-1].append(value)
            if entry.key == "iteration" and isinstance(value, int):
                self._iterations["x"][-1].append(value - self.first_step)
        elif entry.key in self._epochs:
            self._epochs[entry.key].append(value)
            if entry.key == "epoch":
                self._epochs["x"].append(value)
        elif entry.key in (XLA, SYNTHETIC, COSINE):
            self._run[entry.key] = None

    def begin_epoch(self, first_step: int) -> None:
        """What comes is of another epoch."""
        self.first_step = first_step
        for lists in self._iterations.values():
            lists.append([])

    def end_epoch(self, done: int) -> None:
        """An epoch is over after so many steps: all of it is written."""
        self.begin_epoch(done)
        self.write_json()

    def write_json(self) -> None:
        """Write the JSON, and what is unwritten of the lines."""
        self._file.flush()
        document = {
            "run": self._run,
            "epoch": self._epochs,
            "iter": self._iterations,
            "event": {},
        }
        self._json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._json, json.dumps(document, indent=4, allow_nan=False))

    def tick(self) -> None:
        """Call after each step."""
        self._file.tick()

    def flush(self) -> None:
        """Let nothing be unwritten."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
