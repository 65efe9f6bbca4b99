"""Trials: choice of precision by intervals, crashes in the child process, and the climb over batch sizes."""

import math
import random
import sys
from pathlib import Path

import pytest
import torch

from trainstone.config.load import load_config
from trainstone.engine import trials
from trainstone.engine.fit import finish
from trainstone.engine.trials import Turn, choose_fastest, summarise_turns, try_precisions

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
    turns = [Turn("fp32", 0, 2), Turn("fp32", 0, 2, 1.0), Turn("bf16", 0, 2, failure="crashed: Illegal instruction")]
    turns += [Turn("fp16", 0, 2), Turn("fp16", 0, 2, 13.0)]
    found = summarise_turns(turns, ["fp32", "bf16", "fp16"])
    assert (found.precision, found.decided) == ("fp32", True)
    fp32, bf16, fp16 = found.precisions
    assert (fp32.ratio, bf16.ratio, bf16.failure) == (1.0, None, "crashed: Illegal instruction")
    assert (round(1 / fp16.ratio), fp16.ci95) == (13, None)


CHILD = """
import json, os, signal, sys
sys.stdin.read()
for name in sys.argv[1].split(","):
    print(json.dumps([name, 0, 2, None, None]), flush=True)
    if name == "bf16":
        os.kill(os.getpid(), signal.SIGILL)
    print(json.dumps([name, 0, 2, 0.5, None]), flush=True)
for number in range(1, 8):
    for name, seconds in (("fp32", 0.5), ("fp16", 0.25)):
        print(json.dumps([name, number, 2, seconds * (1 + number / 1000), None]), flush=True)
"""


def test_try_precisions_loses_only_the_precision_that_crashes(monkeypatch: pytest.MonkeyPatch):
    real, started = trials.subprocess.Popen, []

    def start(command, **options):
        started.append(command[-2])
        return real([sys.executable, "-c", CHILD, command[-2]], **options)

    monkeypatch.setattr(trials.subprocess, "Popen", start)
    config = load_config("resnet50", settings=TINY)
    found = finish(try_precisions(config, CPU, ["fp32", "bf16", "fp16"], 10.0))
    assert started == ["fp32,bf16,fp16", "fp32,fp16"]
    assert found.precision == "fp16"
    assert found.precisions[1].failure == "crashed: Illegal instruction"
    assert found.precisions[2].ratio == pytest.approx(2.0)


def test_try_precisions_runs_the_real_network_in_a_child():
    config = load_config("resnet50", settings=TINY)
    found = finish(try_precisions(config, CPU, ["fp32", "bf16"], 20.0))
    assert [trial.name for trial in found.precisions] == ["fp32", "bf16"]
    assert all(trial.ratio and trial.ratio > 0 for trial in found.precisions), found


def test_trial_network_times_precisions_and_batches_and_frees_memory(tmp_path: Path):
    with trials.TrialNetwork(load_config("resnet50", settings=TINY), CPU) as network:
        small, large = (min(network.time_turn("fp32", size) for _ in range(3)) for size in (2, 32))
        assert 0 < small < large
        assert network.time_turn("bf16", 2) > 0
    assert not hasattr(network, "_task")
