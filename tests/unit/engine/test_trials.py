"""Trials: choice of precision by intervals, crashes in the child process, and the climb over batch sizes."""

import math
import random
import sys
import weakref

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.engine import trials
from trainstone.engine.fit import finish
from trainstone.engine.trials import Turn, alternate, choose_fastest, summarise_turns, try_precisions

CPU = torch.device("cpu")
TINY = ["model.depth=18", "data.image_size=32", "device=cpu", "engine.threads=1", "train.precision=fp32"]


def noisy(seconds: float, noise: float = 0.01, count: int = 12) -> list[float]:
    draw = random.Random(round(seconds * 1e6))
    return [seconds * math.exp(draw.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize(
    ("times", "choice"),
    [
        ({"fp32": noisy(1.0)}, ("fp32", True)),
        ({"fp32": noisy(1.0), "bf16": noisy(0.5)}, ("bf16", True)),
        ({"fp32": noisy(1.0), "bf16": noisy(1.2)}, ("fp32", True)),
        ({"fp32": noisy(1.0), "bf16": noisy(0.99)}, ("fp32", True)),  # faster, but by less than 5 %
        ({"fp32": noisy(1.0, 0.5), "bf16": noisy(0.9, 0.5)}, ("fp32", False)),  # noise: undecided
        ({"fp32": noisy(1.0, count=3), "bf16": noisy(0.5, count=3)}, ("fp32", False)),  # too few rounds
        ({"fp32": noisy(1.0), "bf16": noisy(0.50), "fp16": noisy(0.49)}, ("bf16", True)),  # fp16 needs a loss scale
        ({"fp32": noisy(1.0), "tf32": noisy(0.6), "bf16": noisy(0.5), "fp16": noisy(0.4)}, ("fp16", True)),
    ],
)
def test_choose_fastest_requires_interval_above_gain(times: dict, choice: tuple):
    assert choose_fastest(times) == choice


def test_choose_fastest_is_not_moved_by_one_disturbed_turn():
    times = {"fp32": noisy(1.0), "bf16": noisy(0.5)}
    times["bf16"][3] *= 20
    assert choose_fastest(times) == ("bf16", True)
    assert choose_fastest({"fp32": noisy(1.0), "bf16": [*noisy(1.3)[:11], 0.01]}) == ("fp32", True)


@pytest.mark.parametrize("count", [6, 9, 15, 40])
def test_compare_speed_interval_covers_the_true_ratio(count: int):
    """Heavy-tailed noise: a tenth of the turns takes up to ten times as long."""
    draw, covered = random.Random(count), 0
    for _ in range(1000):
        pair = [[s * (1 + 9 * draw.random() * (draw.random() < 0.1)) for s in noisy_draw(draw, count)] for _ in "AB"]
        low, high = trials.compare_speed([1.4 * seconds for seconds in pair[0]], pair[1])[1]
        covered += low <= 1.4 <= high
    assert covered >= 940


def noisy_draw(draw: random.Random, count: int) -> list[float]:
    return [math.exp(draw.gauss(0, 0.03)) for _ in range(count)]


def test_summarise_turns_reports_crash_and_slow_first_step():
    turns = [Turn("fp32", 0), Turn("fp32", 0, 1.0), Turn("bf16", 0, failure="crashed: Illegal instruction")]
    turns += [Turn("fp16", 0), Turn("fp16", 0, 13.0)]
    (fp32, bf16, fp16), choice, decided = summarise_turns(turns, ["fp32", "bf16", "fp16"])
    assert (choice, decided) == ("fp32", True)
    assert (fp32.ratio, bf16.ratio, bf16.failure) == (1.0, None, "crashed: Illegal instruction")
    assert (round(1 / fp16.ratio), fp16.ci95) == (13, None)


def test_alternate_takes_turns_and_ends_slow_and_failing_choices():
    seconds, taken = {"fp32": 1.0, "tf32": 3.5, "bf16": 0.5}, []

    def time_turn(name: str) -> float:
        taken.append(name)
        if name == "fp16":
            raise RuntimeError("no kernel\nsecond line")
        return seconds[name]

    turns = list(alternate(time_turn, ["fp32", "tf32", "bf16", "fp16"], math.inf, max_first=3.0))
    assert taken[:8] == ["fp32", "tf32", "bf16", "fp16", "bf16", "fp32", "fp32", "bf16"]
    assert "tf32" not in taken[4:]
    found, choice, decided = summarise_turns(turns, ["fp32", "tf32", "bf16", "fp16"])
    assert (choice, decided, found[3].failure) == ("bf16", True, "no kernel")
    assert found[2].ci95 == (2.0, 2.0)
    assert taken.count("bf16") == 1 + 1 + 6  # the first, a warm-up, and the fewest with an interval


CHILD = """
import json, os, signal, sys
sys.stdin.read()
for name in sys.argv[1].split(","):
    print(json.dumps([name, 0, None, None, 2]), flush=True)
    if name == "bf16":
        os.kill(os.getpid(), signal.SIGILL)
    print(json.dumps([name, 0, 0.5, None, 2]), flush=True)
for number in range(1, 8):
    for name, seconds in (("fp32", 0.5), ("fp16", 0.25)):
        print(json.dumps([name, number, seconds * (1 + number / 1000), None, 2]), flush=True)
"""


def test_try_precisions_loses_only_the_precision_that_crashes(monkeypatch: pytest.MonkeyPatch):
    real, started = trials.subprocess.Popen, []

    def start(command, **options):
        started.append(command[-2])
        return real([sys.executable, "-c", CHILD, command[-2]], **options)

    monkeypatch.setattr(trials.subprocess, "Popen", start)
    config = load_config("resnet50", settings=TINY)
    names = ["fp32", "bf16", "fp16"]
    found, choice, _ = summarise_turns(finish(try_precisions(config, CPU, names, 10.0)), names)
    assert started == ["fp32,bf16,fp16", "fp32,fp16"]
    assert (choice, found[1].failure) == ("fp16", "crashed: Illegal instruction")
    assert found[2].ratio == pytest.approx(2.0)


def test_try_precisions_runs_the_real_network_in_a_child():
    config = load_config("resnet50", settings=TINY)
    names = ["fp32", "bf16"]
    found, *_ = summarise_turns(finish(try_precisions(config, CPU, names, 20.0)), names)
    assert [trial.name for trial in found] == names
    assert all(trial.ratio and trial.ratio > 0 for trial in found), found


def test_try_precisions_on_cuda_stays_in_this_process(monkeypatch: pytest.MonkeyPatch):
    """In exclusive-process mode a second process gets no device."""
    turns = [Turn("fp32", 0, 1.0, batch_size=64), Turn("bf16", 0, 0.5, batch_size=64)]
    monkeypatch.setattr(trials, "alternate_precisions", lambda *_: (turn for turn in turns))
    monkeypatch.setattr(trials.subprocess, "Popen", lambda *_, **__: pytest.fail("a child process was started"))
    config = load_config("resnet50", settings=TINY)
    assert finish(try_precisions(config, torch.device("cuda:0"), ["fp32", "bf16"], 1.0)) == turns


def test_trial_network_times_precisions_and_batches_and_frees_memory():
    with trials.TrialNetwork(load_config("resnet50", settings=TINY), CPU) as network:
        small, large = (min(network.time_turn("fp32", size) for _ in range(3)) for size in (2, 32))
        assert 0 < small < large
        assert network.time_turn("bf16", 2) > 0
        model = weakref.ref(network._task.plain)
    assert model() is None  # at once, not at some later garbage collection: its memory would count as the run's
