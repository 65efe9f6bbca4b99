import numpy as np
import pytest

from trainstone.machine.health import Noise
from trainstone.results import schema
from trainstone.results.summary import describe_preflight, find_limit, summarise_steps
from trainstone.results.verdicts import write_verdict


def columns(seconds: np.ndarray, *, wait: float = 0.0) -> dict[str, np.ndarray]:
    n = len(seconds)
    return {"step_seconds": seconds, "images": np.full(n, 4.0), "data_seconds": np.full(n, wait)}


def noisy(n: int, level: float) -> np.ndarray:
    return level * (1 + 0.01 * np.random.default_rng(0).standard_normal(n))


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


def make_utilisation(compute: float, memory: float) -> schema.Utilisation:
    return schema.Utilisation(mfu=0.38, roofline_compute_seconds=compute, roofline_memory_seconds=memory)


COMPUTE, MEMORY, UNKNOWN = make_utilisation(2.0, 1.0), make_utilisation(1.0, 2.0), schema.Utilisation()


@pytest.mark.parametrize(
    ("utilisation", "seen", "limit"),
    [
        (COMPUTE, {"data_bound": True}, "data"),
        (COMPUTE, {"throttled": "thermal"}, "throttling"),
        (COMPUTE, {"busy_percent": 40.0}, "the host (the device is idle part of the time)"),
        (COMPUTE, {}, "compute"),
        (MEMORY, {"busy_percent": 99.0}, "memory bandwidth"),
        (UNKNOWN, {}, "unknown"),
    ],
)
def test_limits_in_their_order(utilisation: schema.Utilisation, seen: dict, limit: str):
    asked = {"data_bound": False, "busy_percent": None, "throttled": None} | seen
    assert find_limit(utilisation, **asked) == limit


def test_the_verdict_reads_as_a_sentence():
    window = {"steady": True, "steady_from_step": 3, "num_steps": 80, "ci_covers": "within this run"}
    throughput = schema.Throughput(images_per_second=4.9, ci95=(4.85, 4.95), **window)
    utilisation = make_utilisation(2, 1).model_copy(update={"mfu": 0.68, "limit": "compute"})
    noise = Noise(grade="B", reasons=())
    verdict = write_verdict("ResNet-50", throughput, utilisation, noise, device_kind="CPU", precision="fp32")
    assert verdict == (
        "ResNet-50: 4.9 images/s ± 1.0 % (95 %, within this run); 68 % of this CPU's measured fp32 peak; "
        "limited by compute; noise grade B"
    )
    of_two = write_verdict("ResNet-50", throughput, utilisation, noise, device_kind="CPU", precision="fp32", ranks=2)
    assert "images/s on 2 ranks ± 1.0 % (95 %, within this run); 68 % of the first CPU's" in of_two


def test_too_few_steps_to_judge_are_not_called_drifting():
    few = summarise_steps(columns(np.full(10, 0.5)), compiled=False)
    assert not few.throughput.steady
    assert not few.drifting
    drifting = summarise_steps(columns(np.linspace(0.5, 0.6, 200)), compiled=False)
    assert drifting.drifting


def test_describe_preflight_names_hosts_interface_and_largest_all_reduce():
    hosts = [schema.Host(host=name, ranks=ranks, interface="eth0") for name, ranks in (("n1", [0, 1]), ("n2", [2, 3]))]
    timed = schema.AllReduce(bytes=[1024, 2**24], seconds=[1e-4, 0.012], bytes_per_second=2**24 / 0.012)
    preflight = schema.Preflight(meeting="n1:20123", backend="gloo", seconds=1.0, hosts=hosts, all_reduce=timed)
    line = "4 ranks on 2 hosts connected at n1:20123 over eth0; all-reduce of 16 MiB in 12 ms"
    assert describe_preflight(preflight) == line
