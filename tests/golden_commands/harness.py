"""Run a command of the golden harness and describe in one text all that it showed and wrote."""

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

from command import ROOT, Finished
from golden_commands.cases import Case, list_cases
from golden_commands.normalise import count_names, list_keys, list_phases, normalise, normalise_output
from nursery import Nursery

OLD = 1_577_836_800  # 2020-01-01 in seconds since 1970
CASES = {case.name: case for case in list_cases()}
LOSSES = re.compile(r"(?m)^(steps-rank\S+ losses: )(.*)$")
TOLERANCE = 1e-4


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
