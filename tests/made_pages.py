"""A made-up run of every kind that is shown, as usual and with hostile text wherever it may stand."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from command import ROOT
from hostile import EVIL
from made_feeding import A100, make_feeding, make_point
from made_learning import make_evaluations, make_quality, make_training, write_training
from made_profile import make_profile, make_timeline, write_profile
from made_quality import write_found
from made_repeated import write_repeated
from made_results import make_result, write_run, write_runs
from made_sweep import make_row, make_sweep, steps_of
from trainstone.files import dump_json
from trainstone.report.view import RunView, read_view
from trainstone.results.combine import conclude_sweep
from trainstone.results.compare import compare
from trainstone.results.feeding import Feeding
from trainstone.results.schema import Loader
from trainstone.results.sweep import Sweep
from trainstone.results.verdicts import write_data_verdict

FULL = make_row(128, status="out_of_memory", note="out of memory: it is large", order=9)
BATCHES = [*steps_of(0.03, 0.02, 1, 2, 4, 8, 16, 32), FULL]
CURVES = [make_row(b, b * r, curve=c, profile="failed") for c, r in (("fp32", 1.0), ("bf16", 2.0)) for b in (1, 2, 4)]
TIMES = (41.0, 38.0, 47.0, 40.0, 42.6)
POINTS = [
    make_point(n, rate, busy, cores=4) for n, rate, busy in ((1, 600, 1), (2, 1190, 2), (4, 2200, 4), (8, 2400, 7.9))
]
MISSED = make_quality(history=make_evaluations((0.3, 0.612, 0.55)), target=0.65, seconds_to_target=None)
KEPT = ("run", "run_id", "started_utc", "file", "trace", "host", "jpeg_base64")
"""Keys that are left as they are: names of folders and files, which tests of their own spoil."""


def copy_golden(folder: Path, case: str) -> Path:
    """Copy a golden run, with files so old that the run is not believed to be alive."""
    path = shutil.copytree(ROOT / "tests/golden" / case, folder)
    for file in path.rglob("*"):
        os.utime(file, (1e9, 1e9))
    return path


def write_sweep(folder: Path, sweep: Sweep, **changes: Any) -> Path:
    path = folder / "swept"
    children, rows = [], []
    for place, row in enumerate(sweep.rows):
        if row.images_per_second:
            child = make_result(f"point-{place}", row.images_per_second, verdict="ResNet-50: x")
            children.append(child)
            write_run(path / "points", child)
        rows.append(row.model_copy(update={"run": f"points/point-{place}" if row.images_per_second else ""}))
    concluded = conclude_sweep(sweep.model_copy(update={"rows": rows}), children)
    # A run of this host whose process is not there reads as killed where it says running
    host = socket.gethostname() if changes.get("status") == "running" else "here"
    values = {"kind": "sweep", "status": "ok", "host": host} | concluded | changes
    path.mkdir(parents=True, exist_ok=True)
    result = make_result("swept", None, **values)
    (path / "result.json").write_text(dump_json(result.model_dump(mode="json", exclude_none=True)))
    return path


def write_data_bench(folder: Path, feeding: Feeding) -> Path:
    told = {"kind": "data", "status": "ok", "grade": None, "verdict": write_data_verdict(feeding, "ResNet-50")}
    return write_run(folder, make_result("set", None, data_bench=feeding, **told))


def write_compared(folder: Path) -> Path:
    a = write_runs(folder, "a", [100.0, 101.0, 103.0])
    b = write_runs(folder, "b", [90.0, 91.0, 93.0], host="there", grade="C")
    found, _ = compare([str(path) for path in a], [*map(str, b), "a10-lambda-amp"])
    return write_run(folder, make_result("compared", None, status="ok", comparison=found, verdict=found.verdict))


def write_fed(folder: Path) -> Path:
    measured = {"images_per_second": 400.0, "ci95": (390.0, 410.0), "data_bound": False}
    synthetic = {"synthetic_images_per_second": 100.0, "synthetic_ci95": (99.0, 101.0)}
    stored = {"threads": 2, "engine": "threads", "pictures": 1000, "storage": "RecordIO", "digest": "x"}
    stages = {"stage_seconds_per_image": {"read": 1e-3, "decode": 3e-3}}
    return write_run(folder, make_result("fed", 90.0, loader=Loader(**measured, **synthetic, **stored, **stages)))


KINDS: dict[str, Callable[[Path], Path]] = {
    "bench": lambda folder: copy_golden(folder / "good", "good"),
    "killed": lambda folder: copy_golden(folder / "killed", "killed"),
    "throttled": lambda folder: copy_golden(folder / "throttled", "throttled"),
    "ten-ranks": lambda folder: copy_golden(folder / "ten-ranks", "ten-ranks"),
    "fed": write_fed,
    "compared": write_compared,
    "sweep": lambda folder: write_sweep(folder, make_sweep(*BATCHES)),
    "sweep-curves": lambda folder: write_sweep(
        folder, make_sweep(*CURVES, profile=True, curve_key="train.precision", curves=["fp32", "bf16"])
    ),
    "sweep-choice": lambda folder: write_sweep(
        folder, make_sweep(make_row("fp32", 1.0), make_row("bf16", 2.0), make_row("x"), key="train.precision")
    ),
    "train": write_training,
    "train-missed": lambda folder: write_training(folder, make_training(quality=MISSED, status="target_missed")),
    "detect": write_found,
    "runs": lambda folder: write_repeated(folder, TIMES),
    "data": lambda folder: write_data_bench(folder, make_feeding(POINTS, cores=4, demand=A100, skipped=3)),
    "profile": lambda folder: write_profile(folder, make_profile()),
    "profile-cuda": lambda folder: write_profile(folder, make_profile(timeline=make_timeline("cuda"))),
}


def make_view(kind: str, folder: Path, *, hostile: bool = False) -> RunView:
    view = read_view(KINDS[kind](folder))
    return RunView(view.path, poison(view.result), view.page_folder) if hostile else view


def poison(model: Any) -> Any:
    """Append hostile text to every text of a record that may hold any; what its type refuses stays as it is."""
    clean = model.model_dump(mode="json", exclude_none=True)
    evil = _poison(clean)
    for _ in range(20):
        try:
            return type(model).model_validate(evil)
        except ValidationError as error:
            for fault in error.errors():
                _restore(evil, clean, fault["loc"])
    raise AssertionError("the record stays invalid")


def _poison(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        named = {"metrics": EVIL, "pipes_percent": EVIL, "machine": EVIL}.get(key, "")
        return {f"{name}{named}": _poison(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_poison(inner, key) for inner in value]
    return value + EVIL if isinstance(value, str) and key not in KEPT else value


def _restore(evil: Any, clean: Any, place: tuple[int | str, ...]) -> None:
    """Put back the text that a record refused; deeper parts of the place name its type, not a key."""
    for depth, step in enumerate(place):
        if not isinstance(clean, dict | list) or (isinstance(clean, dict) and step not in clean):
            return
        if not isinstance(clean[step], dict | list) or depth == len(place) - 1:
            evil[step] = clean[step]
            return
        evil, clean = evil[step], clean[step]
