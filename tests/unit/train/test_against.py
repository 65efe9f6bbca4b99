"""bench --against within this process: what the command line cannot easily bring about."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import flows
from flows import LateTimer, follow
from trainstone.config.load import load_config
from trainstone.config.schema import Config
from trainstone.errors import ConfigError, RunError
from trainstone.results.schema import Result
from trainstone.results.steps import read_columns
from trainstone.results.store import create_run, read_result
from trainstone.train import against, fit
from trainstone.train.against import fit_pair, list_differences, run_against, tell_unasked
from trainstone.train.lifecycle import Lifecycle

UNFITTED = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu", "engine.threads=1"]
TINY = [*UNFITTED, "train.batch_size=2", "model.width=16"]


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., Path]:
    """Run a comparison; return its folder."""

    def run(*changes: str, iterations: int = 23) -> Path:
        a = load_config("resnet50", settings=[*TINY, f"measure.iterations={iterations}"])
        b = load_config("resnet50", settings=[*TINY, f"measure.iterations={iterations}", *changes])
        folder = create_run(tmp_path, "bench", a, "trainstone bench --against")
        for _ in follow(lambda life: run_against(life, b, same_recipe=True, strict=False), a, folder):
            pass
        return folder.path

    return run


def read_all(path: Path) -> tuple[Result, Result, Result]:
    return read_result(path), read_result(path / "points/a"), read_result(path / "points/b")


def test_a_lagging_clock_loses_no_step_and_keeps_the_order(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(against, "choose_timer", lambda _device: LateTimer())
    path = compare("train.batch_size=4")
    steps = {name: read_columns(path / "points" / name / "steps-rank0000.csv") for name in "ab"}
    starts = [(start, name) for name in "ab" for start in steps[name]["start_seconds"]]
    # The first call of each arm begins three steps at once: what is read late has to be begun before.
    assert "".join(name for _, name in sorted(starts)) == "bbbaaababa" + "abbbaa" * 6
    (row,) = read_result(path).comparison.rows  # type: ignore[union-attr]
    assert row.ci95 is not None


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
    path = compare("seed=1")
    for result in read_all(path):
        assert result.status == "interrupted"
        assert result.findings[-1].code == "interrupted"
        assert result.throughput is None
        assert result.comparison is None


def test_stopped_with_rounds_enough_is_judged(compare, monkeypatch: pytest.MonkeyPatch):
    class StoppedLate(StoppedAtOnce):
        received = None  # type: ignore[assignment]

    class LateBlock(list):
        def append(self, block):
            super().append(block)
            StoppedLate.received = "SIGTERM" if len(self) == 25 else None

    monkeypatch.setattr(flows, "StopSignals", StoppedLate)
    real = against.Interleaving
    monkeypatch.setattr(against, "Interleaving", lambda *parts: real(*parts, blocks=LateBlock()))
    path = compare("seed=1", iterations=60)
    parent, a, _ = read_all(path)
    assert parent.status == a.status == "interrupted"
    assert parent.comparison is not None
    assert parent.comparison.rows[0].judgement != "not judged"
    assert parent.findings[-1].message == "stopped by SIGTERM after 6 complete rounds"


def make(*settings: str) -> Config:
    return load_config("resnet50", settings=[*UNFITTED, *settings])


def test_a_pair_differs_in_what_was_asked_for_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit, "_fits_time", lambda config, device, batch: config.model.depth > 18 or batch <= 2)
    a = make("train.batch_size=auto", "engine.threads=4")
    pair = fit_pair(a, make("train.batch_size=auto", "engine.threads=1"), same_recipe=True, strict=False)
    assert {name: one.config.train.batch_size for name, one in pair.items()} == {"A": 2, "B": 2}
    assert [key for key, _, _ in list_differences(pair["A"].config, pair["B"].config)] == ["engine.threads"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.batch_size=1"], r"^B: train.batch_size = 1 with data.image_size = 32"),
        (["train.batch_size=2", "engine.nvtx=true"], r"^B: --strict: engine.nvtx needs CUDA"),
    ],
)
def test_errors_of_fitting_name_their_variant(settings: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        fit_pair(make("train.batch_size=2"), make(*settings), same_recipe=True, strict=True)


def test_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(against, "choose_device", torch.device)
    with pytest.raises(ConfigError, match="A asks for cpu, B for cuda:1"):
        fit_pair(make(), make("device=cuda:1"), same_recipe=True, strict=False)


def test_both_must_fit_into_memory_together(monkeypatch: pytest.MonkeyPatch):
    """ResNet-18 has 11.7 million parameters: the other one's weights and momentum are 94 MB more."""
    a = make("train.batch_size=2")
    alone = fit.needed_bytes(a, torch.device("cpu"), 2)
    monkeypatch.setattr(against, "free_bytes", lambda _device: alone + 90 * 10**6)
    with pytest.raises(RunError, match="out of memory: both in one process"):
        fit_pair(a, a, same_recipe=True, strict=False)
    monkeypatch.setattr(against, "free_bytes", lambda _device: alone + 100 * 10**6)
    fit_pair(a, a, same_recipe=True, strict=False)


def test_what_the_machine_made_of_it_is_told():
    asked = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=auto", "model.depth=34")}
    fitted = {"A": make("train.batch_size=4"), "B": make("train.batch_size=2", "model.depth=34")}
    assert tell_unasked(asked, fitted) == ["train.batch_size: 4 and 2, as fitted to this machine"]
    asked = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=2")}
    same = make("train.batch_size=2")
    (told,) = tell_unasked(asked, {"A": same, "B": same})
    assert told.startswith("in nothing")
    assert tell_unasked({"A": same, "B": same}, {"A": same, "B": same}) == []
