"""Trials: choice of precision by intervals, crashes in the child process, and the cache file."""

import math
import random
import signal
import sys
import weakref

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.engine import trials
from trainstone.engine.fit import finish
from trainstone.engine.trials import Turn, alternate, choose_precision, summarise_turns, try_precisions
from trainstone.results.schema.trials import SpeedTrial

CPU = torch.device("cpu")
TINY = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=1"]
SIZED = [*TINY, "train.precision=fp32", "train.batch_size=2"]


def speed(name: str, ratio: float | None, spread: float | None = 0.02) -> SpeedTrial:
    ends = None if ratio is None or spread is None else (ratio - spread, ratio + spread)
    return SpeedTrial(name=name, ratio=ratio, ci95=ends, failure=None if ratio else "crashed")


FP32 = SpeedTrial(name="fp32", ratio=1.0)


@pytest.mark.parametrize(
    ("found", "choice"),
    [
        ([], ("fp32", True)),
        ([speed("bf16", 2.0)], ("bf16", True)),
        ([speed("bf16", 0.8)], ("fp32", True)),
        ([speed("bf16", 1.01)], ("fp32", True)),  # faster, but by less than 5 %
        ([speed("bf16", 1.06)], ("fp32", False)),  # the interval has 1.05 in it
        ([speed("bf16", 1.5, None)], ("fp32", False)),  # too few rounds
        ([speed("bf16", 1 / 13, None)], ("fp32", True)),  # emulated: ended by its first turn
        ([speed("bf16", None)], ("fp32", True)),  # crashed
        ([speed("bf16", 2.0), speed("fp16", 2.05)], ("bf16", True)),  # fp16 needs a loss scale
        ([speed("tf32", 1.5), speed("bf16", 2.0), speed("fp16", 3.0)], ("fp16", True)),
        ([speed("tf32", 1.5), speed("bf16", 1.06)], ("tf32", True)),
        ([speed("bf16", 0.9), speed("int8", 3.0)], ("fp32", True)),  # not a candidate of this device
    ],
)
def test_choose_precision_requires_interval_above_gain(found: list, choice: tuple):
    assert choose_precision([FP32, *found], ["fp32", "tf32", "bf16", "fp16"]) == choice


def test_compare_speed_is_not_moved_by_one_disturbed_turn():
    slow, fast = [1.0, 1.01, 0.99] * 4, [0.5, 0.51, 0.49] * 4
    fast[3] *= 20
    ratio, (low, high) = trials.compare_speed(slow, fast)
    assert 1.9 < low <= ratio <= high < 2.1
    assert trials.compare_speed(slow[:5], fast[:5])[1] is None  # five pairs have no 95 % interval


@pytest.mark.parametrize("count", [6, 9, 15, 40])
def test_compare_speed_interval_covers_the_true_ratio(count: int):
    """Heavy-tailed noise: a tenth of the turns takes up to ten times as long."""
    draw, covered = random.Random(count), 0
    for _ in range(1000):
        pair = [
            [seconds * (1 + 9 * draw.random() * (draw.random() < 0.1)) for seconds in noisy_draw(draw, count)]
            for _ in "AB"
        ]
        low, high = trials.compare_speed([1.4 * seconds for seconds in pair[0]], pair[1])[1]
        covered += low <= 1.4 <= high
    assert covered >= 940


def noisy_draw(draw: random.Random, count: int) -> list[float]:
    return [math.exp(draw.gauss(0, 0.03)) for _ in range(count)]


def test_summarise_turns_reports_crash_and_slow_first_turn():
    turns = [Turn("fp32", 0), Turn("fp32", 0, 1.0), Turn("bf16", 0), Turn("bf16", 0, failure="crashed: Illegal")]
    turns += [Turn("fp16", 0), Turn("fp16", 0, 13.0)]
    fp32, bf16, fp16, tf32 = summarise_turns(turns, ["fp32", "bf16", "fp16", "tf32"])
    assert (fp32.ratio, bf16.ratio, bf16.failure) == (1.0, None, "crashed: Illegal")
    assert (round(1 / fp16.ratio), fp16.ci95) == (13, None)
    assert (tf32.ratio, tf32.failure) == (None, "no turn ended in time")


def take_turns(seconds: dict[str, list[float]], budget: float = math.inf, **options):
    """Run alternate with these times of successive turns (the last one repeats); return the turns and their order."""
    taken: list[str] = []

    def time_turn(name: str) -> float:
        taken.append(name)
        series = seconds[name]
        return series[min(taken.count(name), len(series)) - 1]

    return list(alternate(time_turn, list(seconds), budget, **options)), taken


def test_alternate_takes_turns_until_intervals_decide():
    turns, taken = take_turns({"fp32": [1.0], "bf16": [0.5]})
    assert taken[:6] == ["fp32", "bf16", "fp32", "bf16", "bf16", "fp32"]
    assert taken.count("bf16") == 1 + 6  # the first, and the fewest with an interval
    assert summarise_turns(turns, ["fp32", "bf16"])[1].ci95 == (2.0, 2.0)
    _, taken = take_turns({"fp32": [1.0, 1.0, 1.1] + [1.0, 1.1] * 30, "bf16": [1.0]})
    assert taken.count("bf16") == trials.MAX_ROUNDS  # never decided


def test_alternate_gives_slow_choices_a_second_first_turn():
    """The first turn may compile or tune kernels: it must not end a fast choice; an emulated one ends."""
    turns, taken = take_turns({"fp32": [1.0], "tf32": [9.0, 0.7], "bf16": [0.5], "fp16": [13.0]})
    assert taken[:6] == ["fp32", "tf32", "tf32", "bf16", "fp16", "fp16"]
    assert "fp16" not in taken[6:]
    found = {trial.name: trial for trial in summarise_turns(turns, ["fp32", "tf32", "bf16", "fp16"])}
    assert found["tf32"].ci95
    assert found["fp16"].ci95 is None


def test_alternate_ends_failing_choice_and_announces_every_turn():
    def time_turn(name: str) -> float:
        if name == "bf16":
            raise RuntimeError("no kernel\nsecond line")
        return 1.0

    turns = list(alternate(time_turn, ["fp32", "bf16", "fp16"], math.inf))
    assert [turn.failure for turn in turns if turn.name == "bf16"] == [None, "no kernel"]
    for announced, ended in zip(turns[::2], turns[1::2], strict=True):
        assert (announced.name, announced.number, announced.seconds) == (ended.name, ended.number, None)


@pytest.mark.parametrize(("per_turn", "rounds"), [(1.0, 6), (3.0, 3)])
def test_alternate_ends_after_its_time(monkeypatch: pytest.MonkeyPatch, per_turn: float, rounds: int):
    """With at least six rounds, unless they take twice the time: 10 s here."""
    now = 0.0

    def time_turn(_name: str) -> float:
        nonlocal now
        now += per_turn
        return per_turn * (1 + 0.2 * (now % 2))

    monkeypatch.setattr(trials.time, "perf_counter", lambda: now)
    turns = list(alternate(time_turn, ["fp32", "bf16"], 10.0))
    assert max(turn.number for turn in turns) == rounds


CHILD = """
import json, os, signal, sys
sys.stdin.read()
print("onednn_verbose,info", flush=True)  # libraries print, too
sys.stderr.write("warning\\n" * 20000)  # more than a pipe holds
names = sys.argv[1].split(",")
for number in range(8):
    for name, seconds in zip(("fp32", "bf16", "fp16"), (0.5, 0.3, 0.25)):
        if name in names:
            print("turn " + json.dumps([name, number, None, None]), flush=True)
            if name == "bf16" and number == CRASH:
                os.kill(os.getpid(), signal.SIGNAL)
            print("turn " + json.dumps([name, number, seconds * (1 + number / 1000), None]), flush=True)
"""


def compare_with_child(monkeypatch: pytest.MonkeyPatch, crash: int, signal_name: str = "SIGILL"):
    real, started = trials.subprocess.Popen, []

    def start(command, **options):
        started.append(command[-2])
        code = CHILD.replace("CRASH", str(crash)).replace("SIGNAL", signal_name)
        return real([sys.executable, "-c", code, command[-2]], **options)

    monkeypatch.setattr(trials.subprocess, "Popen", start)
    names = ["fp32", "bf16", "fp16"]
    turns = finish(try_precisions(load_config("resnet50", settings=SIZED), CPU, names, 10.0))
    return started, summarise_turns(turns, names)


@pytest.mark.parametrize("crash", [0, 3])
def test_try_precisions_loses_only_the_precision_that_crashes(monkeypatch: pytest.MonkeyPatch, crash: int):
    started, (fp32, bf16, fp16) = compare_with_child(monkeypatch, crash)
    assert started == ["fp32,bf16,fp16", "fp32,fp16"]
    assert (fp32.failure, bf16.failure) == (None, f"crashed: {signal.strsignal(signal.SIGILL)}")
    assert fp16.ratio == pytest.approx(2.0, rel=0.01)
    assert fp16.ci95


def test_try_precisions_does_not_blame_a_precision_for_a_kill(monkeypatch: pytest.MonkeyPatch):
    """The kernel kills for memory, an administrator for reasons of his own."""
    started, (_, bf16, _) = compare_with_child(monkeypatch, 2, "SIGKILL")
    assert started == ["fp32,bf16,fp16"]
    assert (bf16.failure, bf16.ci95) == (None, None)  # too few rounds: undecided


def test_try_precisions_runs_the_real_network_in_a_child(monkeypatch: pytest.MonkeyPatch):
    real, started = trials.subprocess.Popen, []
    monkeypatch.setattr(trials.subprocess, "Popen", lambda *a, **b: started.append(a) or real(*a, **b))
    names = ["fp32", "bf16"]
    found = summarise_turns(finish(try_precisions(load_config("resnet50", settings=SIZED), CPU, names, 20.0)), names)
    assert len(started) == 1
    assert [trial.name for trial in found] == names
    assert all(trial.ratio and trial.ratio > 0 for trial in found), found


def test_try_precisions_on_cuda_stays_in_this_process(monkeypatch: pytest.MonkeyPatch):
    """In exclusive-process mode a second process gets no device."""
    turns = [Turn("fp32", 0, 1.0), Turn("bf16", 0, 0.5)]
    monkeypatch.setattr(trials, "alternate_precisions", lambda *_: (turn for turn in turns))
    monkeypatch.setattr(trials.subprocess, "Popen", lambda *_, **__: pytest.fail("a child process was started"))
    config = load_config("resnet50", settings=SIZED)
    assert finish(try_precisions(config, torch.device("cuda:0"), ["fp32", "bf16"], 1.0)) == turns


def test_trial_network_times_precisions_and_batches_and_frees_memory():
    with trials.TrialNetwork(load_config("resnet50", settings=SIZED), CPU) as network:
        small, large = (min(network.time_turn("fp32", size) for _ in range(3)) for size in (2, 32))
        assert 0 < small < large
        assert network.time_turn("bf16", 2) > 0
        model = weakref.ref(network._task.plain)
    assert model() is None  # at once, not at some later garbage collection: its memory would count as the run's
