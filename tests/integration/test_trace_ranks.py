"""Communication in a real trace: two ranks exchange gradients by gloo while a profiler looks on."""

from pathlib import Path

import pytest

from ranks import run_ranks
from trainstone.results.timeline import analyse_trace

pytestmark = pytest.mark.slow

STEPS = 3


def profile_rank(folder: str) -> str:
    import torch
    from torch import nn
    from torch.distributed import destroy_process_group, init_process_group
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import record_function

    from trainstone.machine.ranks import read_rank
    from trainstone.measure.profiler import Capture, Window

    init_process_group("gloo")
    rank = read_rank()
    # Two buckets, so that the first is exchanged while backward still computes.
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    pictures = torch.randn(64, 1024)
    target = Path(folder) / f"rank{rank.number:04d}.json.gz"
    with Capture(target, torch.device("cpu"), rank, Window(0, 2, 2 + STEPS)) as capture:
        for number in range(2 + STEPS):
            with record_function("forward"):
                loss = model(pictures).square().mean()
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            capture.step(number)
    destroy_process_group()
    return str(target)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    return [Path(name) for name in run_ranks(2, profile_rank, folder, str(folder))]


@pytest.mark.parametrize("number", [0, 1])
def test_communication_is_seen_hidden_and_not(traces: list[Path], number: int):
    timeline = analyse_trace(traces[number]).timeline
    assert timeline.rank == number
    assert len(timeline.steps) == STEPS
    for step in timeline.steps:
        assert 0 < step.communication_total_seconds <= step.seconds
        assert step.communication_seconds + step.overlap_seconds <= step.communication_total_seconds * (1 + 1e-9)
        assert step.optimizer_seconds > 0
    assert sum(step.overlap_seconds for step in timeline.steps) > 0
    assert any("of communication is hidden behind compute" in told for told in timeline.told)
