"""Interleaving on fake loops, and bench --against in this process: cases that a command line can hardly produce."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from support.processes import flows
from support.processes.flows import LateTimer, drain, follow
from trainstone.config.load import load_config
from trainstone.config.schema import Config, MeasureConfig
from trainstone.engine import fit
from trainstone.engine.fit import finish
from trainstone.errors import ConfigError, RunError
from trainstone.flows.compare import interleave, pair, result
from trainstone.flows.compare.interleave import MAX_ROUNDS, WARM_UP_STEPS, Arm, Block, Interleaving
from trainstone.flows.compare.pair import fit_pair, run_against
from trainstone.flows.lifecycle import Lifecycle
from trainstone.measure.clock import HostTimer, StepBegin
from trainstone.results.run_folder import create_run, read_result
from trainstone.results.steps import StepRecord, read_columns
from trainstone.stats.ratio import compare_blocks

CONFIG = load_config("resnet50", settings=["train.batch_size=2"])
OTHER = load_config("resnet50", settings=["train.batch_size=4"])
StepSeconds = float | Callable[[float], float]
"""Time of a step, or a function from the clock to it."""


class Bench:
    """Two fake loops on a clock that moves only when they run; `taken` lists the arm of each step."""

    def __init__(self, step_seconds: dict[str, StepSeconds], *, lag: int = 0, same: bool = False) -> None:
        self.clock = 0.0
        self.taken: list[str] = []
        self.entered: list[str] = []
        self.starts: dict[str, list[float]] = {"A": [], "B": []}
        self.limit: int | None = None
        self.timers = [LateTimer() if lag else HostTimer() for _ in "AB"]
        configs = {"A": CONFIG, "B": CONFIG if same else OTHER}
        self.arms = {
            name: Arm(name, configs[name], self.steps(name, took, lag), timer, partial(self.entered.append, name))
            for name, took, timer in zip("AB", step_seconds.values(), self.timers, strict=True)
        }

    def steps(self, name: str, seconds: StepSeconds, lag: int) -> Iterator[StepRecord]:
        """Like engine/loop.py: a step is yielded when `lag` more have started."""
        pending: list[StepRecord] = []
        for step in itertools.count():
            if step == self.limit:
                break
            assert self.entered[-1] == name
            taken = seconds(self.clock) if callable(seconds) else seconds
            pending.append(StepRecord(step, 0, self.clock, 0.0, taken, 2 if name == "A" else 4, 1.0, 0.1))
            self.clock += taken
            self.taken.append(name)
            self.starts[name].append(pending[-1].start_seconds)
            if len(pending) > lag:
                yield pending.pop(0)
        yield from pending

    def run(self, stopped: Callable[[], object] = lambda: None, **measure: float) -> Interleaving:
        config = MeasureConfig(**measure)
        self.limit = config.iterations
        both = Interleaving(self.arms, config, stopped, lambda: self.clock)
        drain(both.run())
        return both


def test_interleaving_runs_abba_after_warm_up():
    """The step after a change of arm is in no block: six steps per round for four blocks of one step."""
    bench = Bench({"A": 1.0, "B": 1.0})
    done = bench.run(seconds=30.0)
    assert "".join(bench.taken) == "BA" * WARM_UP_STEPS + "ABBBAA" * 5
    assert "".join(block.arm for block in done.blocks) == "ABBA" * 5
    assert done.blocks[:4] == [Block("A", 5, 1), Block("B", 6, 1), Block("B", 7, 1), Block("A", 7, 1)]
    short = Bench({"A": 10.0, "B": 10.0}).run(seconds=0.1)  # a round that has started is finished
    assert [block.arm for block in short.blocks] == list("ABBA")


def test_warm_up_takes_its_time_share_without_first_step():
    first = {"A": 500.0, "B": 0.1}
    bench = Bench({name: lambda _clock, name=name: first.pop(name, 0.1) for name in "AB"})
    done = bench.run(seconds=100.0)
    warm_up = done.blocks[0].first_step
    assert (warm_up - 1) * 0.2 == pytest.approx(10.0, abs=0.3)
    assert done.steps_per_block["A"] == 5  # 100 s / 200 blocks / 0.1 s


def test_plan_blocks_equalises_time_not_steps():
    bench = Bench({"A": 0.01, "B": 0.03})
    done = bench.run(seconds=60.0)
    assert done.steps_per_block == {"A": 30, "B": 10}
    assert done.sum_blocks(done.blocks)[1] == pytest.approx([0.3] * len(done.blocks))
    assert MAX_ROUNDS - 2 <= len(done.blocks) / 4 <= MAX_ROUNDS


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("iterations", [1, 2, 6, 7, 60, 120, 1000])
def test_iterations_are_exact_for_each_arm(iterations: int, lag: int):
    bench = Bench({"A": 1.0, "B": 3.0}, lag=lag)
    done = bench.run(iterations=iterations)
    assert bench.taken.count("A") == bench.taken.count("B") == iterations
    assert [len(arm.seconds) for arm in bench.arms.values()] == [iterations] * 2
    assert len(done.blocks) == 4 * interleave.split_iterations(iterations)[0]
    assert len(set(done.steps_per_block.values())) == 1


@pytest.mark.parametrize("lag", [0, 2])
def test_block_contains_steps_started_in_it(lag: int):
    """Even with late times, no step of the other arm starts between a block's first and last step."""
    bench = Bench({"A": 0.01, "B": 0.02}, lag=lag)
    done = bench.run(seconds=8.0)
    assert done.steps_per_block == {"A": 4, "B": 2}
    for block in done.blocks:
        own = bench.starts[block.arm][block.first_step : block.first_step + block.num_steps]
        assert len(own) == block.num_steps
        assert not [other for other in bench.starts["B" if block.arm == "A" else "A"] if own[0] < other < own[-1]]


def test_step_after_a_change_of_arm_begins_by_itself():
    """Otherwise its time would include the other arm's block."""
    bench = Bench({"A": 1.0, "B": 1.0}, lag=2)
    arms = dict(bench.arms)
    begins: list[tuple[str, StepBegin]] = []

    def follow_steps(name: str, timer: LateTimer) -> Iterator[StepRecord]:
        for record in arms[name].steps:
            begins.append((name, timer.begin_step()))
            timer.end_step()
            yield record

    bench.arms = {
        name: replace(arm, steps=follow_steps(name, timer))
        for (name, arm), timer in zip(bench.arms.items(), bench.timers, strict=True)
    }
    bench.run(seconds=30.0)
    assert len(begins) > 40
    previous = ""
    for name, begin in begins:
        if name != previous:
            assert begin.mark == begin.waits_from  # now, and not where this arm's last step ended
        previous = name


@pytest.mark.parametrize("lag", [0, 2])
def test_linear_drift_cancels_out(lag: int):
    bench = Bench({name: lambda clock: 0.05 * (1 + clock / 60) for name in "AB"}, lag=lag, same=True)
    done = bench.run(seconds=60.0)
    images, seconds = done.sum_blocks(done.complete_rounds())
    paired = compare_blocks(images, seconds)
    assert seconds[-1] > 1.5 * seconds[0]
    assert paired.ratio == pytest.approx(0.5, rel=1e-3)  # A has 2 images per step, B 4


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("after", [1, 2, 7, 10, 13, 16, 40])
def test_stop_between_steps_leaves_complete_blocks(after: int, lag: int):
    bench = Bench({"A": 1.0, "B": 1.0}, lag=lag)
    done = bench.run(stopped=lambda: len(bench.taken) - 2 * lag >= after, seconds=60.0)
    assert len(bench.taken) <= after + 4 * lag + 1
    assert len(done.complete_rounds()) % 4 == 0
    for block in done.blocks:
        assert block.first_step + block.num_steps <= len(bench.arms[block.arm].seconds)


def test_prefix_errors_names_arm_but_not_for_bugs():
    def fail(err: BaseException) -> None:
        with interleave.prefix_errors("A"):
            raise err

    with pytest.raises(RunError, match=r"^A: out of memory: MPS"):
        fail(RuntimeError("MPS backend out of memory"))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        fail(RuntimeError("a bug"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())


UNFITTED = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "device=cpu", "engine.threads=1"]
TINY = ["train.batch_size=2", "model.width=16"]


def make(*settings: str) -> Config:
    return load_config("resnet50", settings=[*UNFITTED, *settings])


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., Path]:
    """Run a comparison; return its folder."""

    def run(*changes: str, iterations: int = 23) -> Path:
        a, b = (make(*TINY, f"measure.iterations={iterations}", *more) for more in ((), changes))
        folder = create_run(tmp_path, "bench", a, "trainstone bench --against")
        drain(follow(lambda life: run_against(life, b, same_recipe=True, strict=False), a, folder))
        return folder.path

    return run


def test_late_timer_loses_no_step_and_keeps_order(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pair, "choose_timer", lambda _device: LateTimer())
    path = compare("train.batch_size=4")
    steps = {name: read_columns(path / "points" / name / "steps-rank0000.csv") for name in "ab"}
    starts = [(start, name) for name in "ab" for start in steps[name]["start_seconds"]]
    # With lag 2 the first call of each arm starts three steps.
    assert "".join(name for _, name in sorted(starts)) == "bbbaaababa" + "abbbaa" * 6
    (row,) = read_result(path).comparison.rows
    assert row.ci95 is not None


class StoppedAtOnce(nullcontext):
    """A stop signal that was received while the models were built."""

    received = "SIGINT"

    def __enter__(self) -> "StoppedAtOnce":
        return self


def test_comparison_stopped_before_first_step_is_interrupted(compare, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "StopSignals", StoppedAtOnce)
    monkeypatch.setattr(Lifecycle, "check_stop", lambda _life: None)
    path = compare("seed=1")
    for folder in (path, path / "points/a", path / "points/b"):
        result = read_result(folder)
        assert result.status == "interrupted"
        assert result.findings[-1].code == "interrupted"
        assert result.throughput is None
        assert result.comparison is None


def test_comparison_stopped_with_enough_rounds_has_outcome(compare, monkeypatch: pytest.MonkeyPatch):
    class StoppedLate(StoppedAtOnce):
        received = None

    class LateBlock(list):
        def append(self, block):
            super().append(block)
            StoppedLate.received = "SIGTERM" if len(self) == 25 else None

    monkeypatch.setattr(flows, "StopSignals", StoppedLate)
    real = pair.Interleaving
    monkeypatch.setattr(pair, "Interleaving", lambda *parts: real(*parts, blocks=LateBlock()))
    path = compare("seed=1", iterations=60)
    parent = read_result(path)
    assert parent.status == read_result(path / "points/a").status == "interrupted"
    assert parent.comparison.rows[0].outcome != "not assessed"
    assert parent.findings[-1].message == "stopped by SIGTERM after 6 complete rounds"


def test_fit_pair_differs_only_in_requested_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(fit, "_fits_time", lambda config, row, batch: config.model.depth > 18 or batch <= 4)
    monkeypatch.setenv("TRAINSTONE_CACHE", str(tmp_path))
    a = make("train.batch_size=auto", "engine.threads=4")
    pair = finish(fit_pair(a, make("train.batch_size=auto", "engine.threads=1"), same_recipe=True, strict=False))
    assert {name: one.config.train.batch_size for name, one in pair.items()} == {"A": 4, "B": 4}
    assert [key for key, _, _ in result.list_differences(pair["A"].config, pair["B"].config)] == ["engine.threads"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.batch_size=1"], r"^B: invalid train.batch_size = 1 with data.image_size = 32"),
        (["train.batch_size=2", "engine.nvtx=true"], r"^B: --strict: engine.nvtx needs CUDA"),
        (["device=cuda:1"], "A requests cpu, B requests cuda:1"),
    ],
)
def test_fit_pair_errors_name_variant(monkeypatch: pytest.MonkeyPatch, settings: list[str], message: str):
    monkeypatch.setattr(pair, "choose_device", torch.device)
    with pytest.raises(ConfigError, match=message):
        finish(fit_pair(make("train.batch_size=2"), make(*settings), same_recipe=True, strict=True))


def test_fit_pair_refuses_variants_that_exceed_memory_together(monkeypatch: pytest.MonkeyPatch):
    """ResNet-18 has 11.7 million parameters: the other variant's weights and momentum need 94 MB more."""
    a = make("train.batch_size=2")
    single = fit.needed_bytes(a, torch.device("cpu"), 2)
    monkeypatch.setattr(pair, "free_bytes", lambda _device: single + 90 * 10**6)
    with pytest.raises(RunError, match="out of memory: both variants in one process"):
        finish(fit_pair(a, a, same_recipe=True, strict=False))
    monkeypatch.setattr(pair, "free_bytes", lambda _device: single + 100 * 10**6)
    finish(fit_pair(a, a, same_recipe=True, strict=False))


def test_describe_unrequested_lists_differences_from_fitting():
    requested = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=auto", "model.depth=34")}
    fitted = {"A": make("train.batch_size=4"), "B": make("train.batch_size=2", "model.depth=34")}
    assert result.describe_unrequested(requested, fitted) == ["train.batch_size: 4 and 2, as fitted to this machine"]
    requested = {"A": make("train.batch_size=auto"), "B": make("train.batch_size=2")}
    same = make("train.batch_size=2")
    (message,) = result.describe_unrequested(requested, {"A": same, "B": same})
    assert message.startswith("in nothing")
    assert result.describe_unrequested({"A": same, "B": same}, {"A": same, "B": same}) == []
