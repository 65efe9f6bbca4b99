"""The commands of the golden harness, each a second or two of work; run, and described in one text: shown, written."""

import csv
import itertools
import json
import math
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from golden_commands.normalise import count_names, list_keys, list_phases, normalise, normalise_output
from support.builders.training_runs import set_arguments
from support.processes.command import ROOT, Finished, narrow_arguments
from support.processes.forked import Nursery

OLD = 1_577_836_800  # 2020-01-01 in seconds since 1970
LOSSES = re.compile(r"(?m)^(steps-rank\S+ losses: )(.*)$")
TOLERANCE = 1e-4
SMALL = (*narrow_arguments(), "--set", "engine.keep_memory=false")
TRAIN = ("train", "demo-classify", *set_arguments(stop__epochs=1.0, optimizer__learning_rate=0.01))
EVAL = ("--device", "cpu", "--set", "engine.threads=1", "--set", "loader.threads=1")
GOOD, DRIFTING = "../golden/good", "../golden/never-steady"


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]
    """Its arguments; {run} is the run folder that `needs` made."""
    needs: str = ""
    """A case whose folder is copied first: its run, its data set, its cache of generated images."""
    json: bool = False
    """Run the command again with --json and record the keys of the document."""
    exact: bool = False
    """The numbers come from stored files, so they are compared as text."""
    losses: int | None = None
    """Compare only so many losses: these recipes' learning rates multiply the rounding errors of a processor."""


LISTED = [
    Case("bench", ("bench", *SMALL, "--iterations", "12"), json=True),
    Case("bench_dry_run", ("bench", *SMALL, "--iterations", "12", "--dry-run"), json=True, exact=True),
    Case("bench_against", ("bench", *SMALL, "--iterations", "8", "--against", "train.batch_size=4")),
    Case("bench_runs", ("bench", *SMALL, "--iterations", "8", "--runs", "2")),
    Case(
        "bench_data",
        ("bench", *SMALL, "--set", "loader.threads=1", "--iterations", "8", "--data", "set"),
        needs="data_make",
    ),
    Case("bench_wmlce", ("bench", "resnet50-wmlce", *SMALL, "--iterations", "30", "-q"), losses=4),
    Case("bench_tbd", ("bench", "resnet50-tbd", *SMALL, "--iterations", "20", "-q"), losses=8),
    Case("bench_sc22", ("bench", "resnet50-sc22", *SMALL, "--iterations", "8", "-q"), losses=2),
    Case("train", TRAIN, json=True),
    Case("train_runs", (*TRAIN, "--runs", "2"), needs="train"),
    Case("train_resume", ("train", "--resume", "{run}", "--set", "stop.epochs=2"), needs="train"),
    Case("train_resume_ended", ("train", "--resume", "{run}", "-q", "--require-target"), needs="train"),
    Case("eval", ("eval", "{run}", *EVAL), needs="train", json=True),
    Case("eval_bench", ("eval", "{run}", *EVAL, "--bench", "--seconds", "0.3"), needs="train"),
    Case("eval_export", ("eval", "{run}", "--export", "weights.safetensors"), needs="train"),
    Case("profile", ("profile", *SMALL, "--start", "3", "--iterations", "2")),
    Case("sweep", ("sweep", *SMALL, "--set", "measure.iterations=8", "--batch-sizes", "2,4")),
    Case("sweep_dry_run", ("sweep", *SMALL, "--batch-sizes", "2,4", "--dry-run"), exact=True),
    Case("data_make", ("data", "make", "classify", "--to", "set", "--count", "10", "--val", "4", "--size", "48")),
    Case("data_info", ("data", "info", "set"), needs="data_make", json=True),
    Case("data_verify", ("data", "verify", "set"), needs="data_make", json=True),
    Case(
        "data_bench",
        ("data", "bench", "set", *SMALL, "--threads", "1", "--seconds", "0.3", "--demand", "5"),
        needs="data_make",
    ),
    Case("compare", ("compare", GOOD, "--to", DRIFTING, "--force"), json=True, exact=True),
    Case("compare_same_run", ("compare", GOOD, "--to", GOOD), exact=True),
    Case("report", ("report", GOOD, "--page", "page.html", "--json"), exact=True),
    Case("recipes", ("recipes",), json=True, exact=True),
    Case("recipes_from", ("recipes", "--from", "tbd", "--", "--batch_size=32", "--train_steps=10"), exact=True),
    Case("weights_convert", ("weights", "convert", "weights.safetensors", "weights.pth"), needs="eval_export"),
    Case("mlperf_check", ("mlperf", "check", "{run}/mlperf.log"), needs="train", json=True),
    Case("mlperf_summary", ("mlperf", "summary", "{run}/mlperf.log"), needs="train", json=True),
    Case("launch_local", ("launch", "local", "--ranks", "2", "--", "bench", *SMALL, "--iterations", "8")),
    Case("launch_slurm_dry_run", ("launch", "slurm", "--nodes", "2", "--dry-run", "--", "bench"), exact=True),
    Case("doctor", ("doctor",), json=True),
    Case("error_unknown_key", ("bench", "--set", "model.deth=18"), exact=True),
    Case("error_wrong_flag", ("bench", "--itertions", "3"), exact=True),
    Case("error_no_data", ("bench", *SMALL, "--data", "nowhere")),
    Case("error_nan", ("train", "demo-classify", *set_arguments(optimizer__learning_rate=1e12)), needs="train"),
    Case("error_resume", ("train", "--resume", "nowhere"), exact=True),
    Case("error_launch", ("launch", "local", "--ranks", "2"), exact=True),
]
CASES = {case.name: case for case in LISTED}


@dataclass(frozen=True)
class Ran:
    finished: Finished
    folder: Path
    written: list[Path]


class Harness:
    def __init__(self, nursery: Nursery, base: Path) -> None:
        self._nursery = nursery
        self._base = base
        self._ran: dict[str, Ran] = {}
        shutil.copytree(ROOT / "tests/golden", base / "golden")
        for path in (base / "golden").rglob("*"):
            os.utime(path, (OLD, OLD))

    def run(self, case: Case, *further: str) -> Ran:
        name = "-".join((case.name, *(word.strip("-") for word in further)))
        if name not in self._ran:
            folder = self._base / name
            if case.needs:
                shutil.copytree(self.run(CASES[case.needs]).folder, folder)
            elif further and (self._base / case.name / "cache").exists():
                shutil.copytree(self._base / case.name / "cache", folder / "cache")
            folder.mkdir(exist_ok=True)
            before = list_files(folder)
            runs = [str(path.relative_to(folder)) for path in folder.glob("runs/*")]
            words = [word.format(run=runs[0]) if "{run}" in word else word for word in case.words]
            words = [*words, *further] if "--" not in words else words
            environment = {"TRAINSTONE_CACHE": str(folder / "cache"), "COLUMNS": "2000"}
            finished = self._nursery.start(*words, env=environment, cwd=folder).wait()
            written = [path for path, state in list_files(folder).items() if before.get(path) != state]
            self._ran[name] = Ran(finished, folder, written)
        return self._ran[name]

    def describe(self, case: Case) -> str:
        ran = self.run(case)
        output = normalise if case.exact else normalise_output
        parts = {
            f"$ trainstone {shlex.join(case.words)}": f"exit code {ran.finished.code}",
            "stdout": output(ran.finished.out, folder=ran.folder),
            "stderr": output(list_phases(ran.finished.err), folder=ran.folder),
        }
        if case.json:
            again = self.run(case, "--json")
            parts[f"keys of --json (exit code {again.finished.code})"] = "\n".join(list_keys(again.finished.json()))
        parts |= describe_files(ran)
        return "\n".join(f"## {title}\n{text.strip(chr(10))}\n" for title, text in parts.items() if text.strip())


def list_files(folder: Path) -> dict[Path, tuple[int, int]]:
    files = [path for path in folder.rglob("*") if path.is_file() and folder / "cache" not in path.parents]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(files)}


def describe_files(ran: Ran) -> dict[str, str]:
    """Return names of written files, keys of the result, what the originals' files hold, and losses."""

    def name(path: Path) -> str:
        return normalise(str(path.relative_to(ran.folder)))

    parts = {"files written": "\n".join(count_names(name(path) for path in ran.written))}
    for path in ran.written:
        if path.match("runs/*/result.json"):
            keys = [line for line in list_keys(json.loads(path.read_text())) if not line.startswith("config")]
            parts[f"keys of {name(path)} (without config)"] = "\n".join(keys)
        if path.parent.name == "original" or "/original/" in str(path) or path.match("runs/*/mlperf.log"):
            parts[name(path)] = "\n".join(merge_repeated(normalise(path.read_text(), "original").splitlines()))
    steps = {path: read_losses(path) for path in ran.written if path.name.startswith("steps-rank")}
    for path, losses in sorted(steps.items(), key=lambda item: (name(item[0]), item[1])):
        title = f"{name(path.parent)}: losses"
        parts[title] = parts.get(title, "") + (f"{path.name} losses: {losses}\n" if losses else "")
    return parts


def merge_repeated(lines: list[str]) -> list[str]:
    counted = [(line, len(list(same))) for line, same in itertools.groupby(lines)]
    return [line + (f" × {count}" if count > 1 and line else "") for line, count in counted]


def read_losses(path: Path) -> str:
    """Return the losses up to the first that is NaN or has exploded: what follows depends on the processor."""
    with path.open(encoding="utf-8", newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return " ".join(f"{loss:.6g}" for loss in itertools.takewhile(lambda loss: loss < 1e6, losses))


def same(one: str, other: str, count: int | None = None) -> bool:
    """Whether two texts are equal, the first `count` losses of each rank within the tolerance."""
    losses, others = ([match[2].split() for match in LOSSES.finditer(text)] for text in (one, other))
    if [len(row) for row in losses] != [len(row) for row in others]:
        return False
    pairs = [pair for rows in zip(losses, others, strict=True) for pair in list(zip(*rows, strict=True))[:count]]
    close = all(math.isclose(float(a), float(b), rel_tol=TOLERANCE) for a, b in pairs)
    return close and LOSSES.sub(r"\1", one) == LOSSES.sub(r"\1", other)
