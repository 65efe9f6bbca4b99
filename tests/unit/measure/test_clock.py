import itertools

import torch

from trainstone.measure.clock import HostTimer, choose_timer


def test_a_device_without_events_is_waited_for_at_each_mark():
    waits: list[int] = []
    times = itertools.count(1.0)
    timer = HostTimer(now=lambda: next(times), synchronize=lambda: waits.append(1))
    first, second = timer.mark(), timer.mark()
    timer.wait(second)
    assert timer.seconds(first, second) == 1.0
    assert len(waits) == 2


def test_a_cpu_is_not_waited_for():
    timer = choose_timer(torch.device("cpu"))
    assert timer.lag == 0
    assert timer.seconds(timer.mark(), timer.mark()) >= 0
