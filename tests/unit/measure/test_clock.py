import torch

from trainstone.measure.clock import HostTimer, choose_timer


class FakeClock:
    """Ticks one second at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_marks_are_host_time():
    timer = HostTimer(now=FakeClock())
    first, second = timer.mark(), timer.mark()
    timer.wait(second)
    assert timer.seconds(first, second) == 1.0


def test_a_device_without_events_is_waited_for_at_each_mark():
    waits = []
    timer = HostTimer(now=FakeClock(), synchronize=lambda: waits.append(1))
    timer.mark()
    timer.mark()
    assert len(waits) == 2


def test_a_cpu_is_not_waited_for():
    timer = choose_timer(torch.device("cpu"))
    assert timer.lag == 0
    assert timer.seconds(timer.mark(), timer.mark()) >= 0
