"""bench --against within this process: what the command line cannot easily bring about."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import flows
from flows import follow
from trainstone.config.load import load_config
from trainstone.measure.clock import HostTimer
from trainstone.results.schema import Result
from trainstone.results.steps import read_columns
from trainstone.results.store import create_run, read_result
from trainstone.train import against
from trainstone.train.against import run_against
from trainstone.train.lifecycle import Lifecycle

TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "train.batch_size=2", "device=cpu"]
TINY += ["engine.threads=1"]


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., tuple[Path, list[str]]]:
    """Run a comparison; return its folder and the phases it showed."""
    threads = torch.get_num_threads()

    def run(*changes: str, iterations: int = 23) -> tuple[Path, list[str]]:
        a = load_config("resnet50", settings=[*TINY, f"measure.iterations={iterations}"])
        b = load_config("resnet50", settings=[*TINY, f"measure.iterations={iterations}", *changes])
        folder = create_run(tmp_path, "bench", a, "trainstone bench --against")
        try:
            return folder.path, [
                p.phase for p in follow(lambda life: run_against(life, b, same_recipe=True, strict=False), a, folder)
            ]
        finally:
            torch.set_num_threads(threads)

    return run


def read_all(path: Path) -> tuple[Result, Result, Result]:
    return read_result(path), read_result(path / "points/a"), read_result(path / "points/b")


class LaggingTimer(HostTimer):
    """Reads marks two steps late, as CUDA events are read."""

    lag = 2


def test_a_lagging_clock_loses_no_step_and_keeps_the_order(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(against, "choose_timer", lambda _device: LaggingTimer())
    path, _ = compare("train.batch_size=4")
    steps = {name: read_columns(path / "points" / name / "steps-rank0000.csv") for name in "ab"}
    starts = [(start, name) for name in "ab" for start in steps[name]["start_seconds"]]
    # The first call of each arm begins three steps at once: what is read late has to be begun before.
    assert "".join(name for _, name in sorted(starts)) == "bbbaaababa" + "abbbaa" * 6
    (row,) = read_result(path).comparison.rows  # type: ignore[union-attr]
    assert row.ci95 is not None


def test_phases_name_the_arm_and_the_pair(compare):
    _, phases = compare("seed=1", iterations=9)
    assert phases[3:] == ["warming up"] * 12 + [
        "comparing: A, pair 1", "comparing: B, pair 1", "comparing: B, pair 1",
        "comparing: B, pair 2", "comparing: A, pair 2", "comparing: A, pair 2",
    ]  # fmt: skip


def test_what_the_machine_adapted_is_told_with_the_arms_name(compare):
    path, _ = compare("engine.nvtx=true", iterations=9)
    parent, a, b = read_all(path)
    message = "engine.nvtx needs CUDA; this run is on cpu: switched off"
    assert message in [found.message for found in b.findings]
    assert f"B: {message}" in [found.message for found in parent.findings]
    assert message not in [found.message for found in a.findings]
    assert parent.comparison is not None
    assert parent.comparison.rows[0].differences == ["in nothing: fitted to this machine, both come to the same"]


class StoppedAtOnce:
    """A stop signal that was received while the models were built."""

    received = "SIGINT"

    def __enter__(self) -> "StoppedAtOnce":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_stopped_before_the_first_step(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "StopSignals", StoppedAtOnce)
    monkeypatch.setattr(Lifecycle, "check_stop", lambda _life: None)
    path, _ = compare("seed=1")
    for result in read_all(path):
        assert result.status == "interrupted"
        assert result.findings[-1].code == "interrupted"
        assert result.throughput is None
        assert result.comparison is None


def test_stopped_between_two_phases(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "StopSignals", StoppedAtOnce)
    with pytest.raises(KeyboardInterrupt):
        compare("seed=1")


def test_stopped_with_rounds_enough_is_judged(compare, monkeypatch: pytest.MonkeyPatch):
    class StoppedLate(StoppedAtOnce):
        received = None  # type: ignore[assignment]

    real = against.tell_progress

    def tell(turn, done):
        if len(done.blocks) == 25:
            StoppedLate.received = "SIGTERM"
        return real(turn, done)

    monkeypatch.setattr(flows, "StopSignals", StoppedLate)
    monkeypatch.setattr(against, "tell_progress", tell)
    path, _ = compare("seed=1", iterations=60)
    parent, a, _ = read_all(path)
    assert parent.status == a.status == "interrupted"
    assert parent.comparison is not None
    assert parent.comparison.rows[0].judgement != "not judged"
    assert parent.findings[-1].message == "stopped by SIGTERM after 6 complete rounds"
