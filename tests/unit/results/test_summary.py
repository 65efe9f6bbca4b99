import numpy as np
import pytest

from trainstone.machine.health import Noise
from trainstone.results import schema
from trainstone.results.summary import describe_interval, find_limit, summarise_steps, write_verdict


def columns(seconds: np.ndarray, *, images: int = 4, wait: float = 0.0) -> dict[str, np.ndarray]:
    n = len(seconds)
    return {
        "step_seconds": seconds,
        "images": np.full(n, float(images)),
        "data_seconds": np.full(n, wait),
    }


def noisy(n: int, level: float, seed: int = 0) -> np.ndarray:
    return level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(n))


def test_throughput_is_images_over_time_not_a_mean_of_rates():
    seconds = np.array([1.0, 3.0] * 100)
    summary = summarise_steps(columns(seconds), compiled=False)
    assert summary.throughput.images_per_second == pytest.approx(4 / 2.0, rel=0.02)


def test_warm_up_is_left_out_and_told_apart():
    seconds = np.concatenate([[10.0, 3.0, 1.5], noisy(200, 0.5)])
    summary = summarise_steps(columns(seconds), compiled=True)
    assert 3 <= summary.throughput.steady_from_step <= 30
    assert summary.throughput.images_per_second == pytest.approx(8.0, rel=0.01)
    assert summary.step_seconds.first == 10.0
    assert summary.phases.compile_seconds == pytest.approx(9.5, abs=0.02)
    assert summary.phases.train_seconds == pytest.approx(seconds.sum())


def test_data_wait_is_a_share_of_the_window():
    summary = summarise_steps(columns(noisy(100, 0.5), wait=0.1), compiled=False)
    assert summary.data_share == pytest.approx(0.2, rel=0.01)
    assert summary.phases.data_wait_seconds == pytest.approx(10.0)
    assert summary.phases.compile_seconds is None


def test_one_step_is_enough_for_a_number_but_not_for_an_interval():
    summary = summarise_steps(columns(np.array([2.0])), compiled=False)
    assert summary.throughput.images_per_second == 2.0
    assert summary.throughput.ci95 is None
    assert "not established" in describe_interval(summary.throughput)


def make_utilisation(compute: float, memory: float) -> schema.Utilisation:
    return schema.Utilisation(mfu=0.38, roofline_compute_seconds=compute, roofline_memory_seconds=memory)


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        ({"data_bound": True}, "data"),
        ({"throttled": "thermal"}, "throttling"),
        ({"busy_percent": 40.0}, "the host (the device is idle part of the time)"),
        ({}, "compute"),
    ],
)
def test_limits_in_their_order(seen: dict, limit: str):
    asked = {"data_bound": False, "busy_percent": None, "throttled": None} | seen
    assert find_limit(make_utilisation(2.0, 1.0), **asked) == limit


def test_memory_limits_when_the_roofline_says_so():
    seen = {"data_bound": False, "busy_percent": 99.0, "throttled": None}
    assert find_limit(make_utilisation(1.0, 2.0), **seen) == "memory bandwidth"
    assert find_limit(schema.Utilisation(), **seen) == "unknown"


def test_the_verdict_reads_as_a_sentence():
    throughput = schema.Throughput(
        images_per_second=4.9,
        ci95=(4.85, 4.95),
        ci_covers="within this run",
        steady=True,
        steady_from_step=3,
        num_steps=80,
    )
    utilisation = make_utilisation(2, 1).model_copy(update={"mfu": 0.68, "limit": "compute"})
    noise = Noise(grade="B", reasons=())
    verdict = write_verdict("ResNet-50", throughput, utilisation, noise, device_kind="CPU", precision="fp32")
    assert verdict == (
        "ResNet-50: 4.9 images/s ± 1.0 % (95 %, within this run); 68 % of this CPU's measured fp32 peak; "
        "limited by compute; noise grade B"
    )
    of_two = write_verdict("ResNet-50", throughput, utilisation, noise, device_kind="CPU", precision="fp32", ranks=2)
    assert of_two.startswith(
        "ResNet-50: 4.9 images/s on 2 ranks ± 1.0 % (95 %, within this run); 68 % of the first CPU's"
    )


def test_too_few_steps_to_judge_are_not_called_drifting():
    few = summarise_steps(columns(np.full(10, 0.5)), compiled=False)
    assert not few.throughput.steady
    assert not few.drifting
    drifting = summarise_steps(columns(np.linspace(0.5, 0.6, 200)), compiled=False)
    assert drifting.drifting
