"""Generated sweep rows, and a real sweep whose points need no torch."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.builders.results import make_result
from support.processes.command import ROOT
from support.processes.flows import follow
from trainstone.config.load import load_config
from trainstone.files import dump_json
from trainstone.flows import child_runs
from trainstone.flows.sweep.plan import SweepPlan, plan_from_flags
from trainstone.flows.sweep.run import run_sweep
from trainstone.machine.facts import read_software
from trainstone.results.run_folder import RunFolder, create_run
from trainstone.results.schema.run import Result
from trainstone.results.schema.sweep import BATCH, Sweep, SweepRow
from trainstone.results.verdicts import assess_sweep

FAKE = (sys.executable, "-I", "-S", str(ROOT / "tests/support/processes/fake_point.py"))


def make_row(value: Any, rate: float | None = None, half_width: float | None = 0.01, **changes: Any) -> SweepRow:
    values = {"value": value, "order": 1, "status": "failed"}
    if rate is not None:
        values |= {"status": "ok", "run": f"points/{value}", "images_per_second": rate, "mfu": 0.5}
        values |= {"limit": "compute", "memory_bytes": 2**30}
        values |= {"ci95": (rate * (1 - half_width), rate * (1 + half_width))} if half_width is not None else {}
        values |= {"images_per_step": value} if isinstance(value, int) and 0 < value < 2**31 else {}
    return SweepRow(**(values | changes))


def make_sweep(*rows: SweepRow, key: str = BATCH, **changes: Any) -> Sweep:
    values = list({repr(row.value): row.value for row in rows}.values())
    return assess_sweep(Sweep(**({"key": key, "values": values, "rows": list(rows)} | changes)))


def steps_of(fixed: float, per_image: float, *batches: int) -> list[SweepRow]:
    """Return the rows of a machine with a fixed and a per-image step cost."""
    return [make_row(batch, batch / (fixed + per_image * batch)) for batch in batches]


def plan_small(batch_sizes: str | None = "1,2,4", over: str | None = None, **requested: Any) -> SweepPlan:
    return plan_from_flags(load_config("resnet50", settings=["device=cpu"]), batch_sizes, over, **requested)


def write_fake_result(folder: Path) -> Path:
    file = folder / "fake-result.json"
    result = make_result("fake", software=read_software())
    file.write_text(dump_json(result.model_dump(mode="json", exclude_none=True)))
    return file


def run_fake(
    monkeypatch: pytest.MonkeyPatch, plan: SweepPlan, folder: Path, run: RunFolder | None = None, **happens: str
) -> RunFolder:
    """Run a sweep whose points are processes/fake_point.py; `happens` as batch_4="memory" or profile_4="loss"."""
    table = {name.removeprefix("batch_").replace("_", " "): action for name, action in happens.items()}
    monkeypatch.setenv("FAKE_POINTS", json.dumps(table))
    monkeypatch.setenv("FAKE_RESULT", str(write_fake_result(folder.parent)))
    monkeypatch.setattr(child_runs, "TRAINSTONE", FAKE)
    run = run or create_run(folder, "sweep", plan.config, "trainstone sweep")
    for _ in follow(lambda life: run_sweep(life, plan), plan.config, run):
        pass
    return run


def statuses(result: Result) -> dict[Any, str]:
    assert result.sweep is not None
    return {row.value: row.status for row in result.sweep.rows}


def count_points(path: Path) -> int:
    return len(list((path / "points").iterdir()))
