"""Documents that ranks exchange through the store, and the errors of a store that cannot be used."""

import socket
from pathlib import Path
from typing import Any

import pytest

from command import find_free_port
from ranks import run_ranks
from trainstone.config.schema import ParallelConfig
from trainstone.errors import LaunchError
from trainstone.machine.ranks import Meeting, Rank, read_rank
from trainstone.train.preflight import store


def test_open_store_names_a_port_in_use_and_an_address_without_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Meeting("127.0.0.1", other.getsockname()[1])
        with pytest.raises(LaunchError, match=r"rank 0 on .* cannot listen at .* another program uses this port"):
            store.open_store(Rank(0, 2), address, 5)
        with pytest.raises(LaunchError, match="what listens there does not answer as rank 0 does"):
            store.open_store(Rank(1, 2), address, 1)
    with pytest.raises(LaunchError, match=r"rank 1 on .* cannot reach rank 0 at .* Connection refused") as caught:
        store.open_store(Rank(1, 2), Meeting("127.0.0.1", find_free_port()), 0.1)
    assert (caught.value.hint or "").startswith("127.0.0.1 is each host itself")


def connect_twice_and_wait(over: str) -> dict[str, Any]:
    """In each rank: connect, disconnect, connect again; then rank 1 is silent until rank 0 has waited for it."""
    import time

    import torch
    import torch.distributed as dist

    from nursery import wait_until
    from ranks import join_world
    from trainstone.train.distributed import barrier, sum_over

    parallel = ParallelConfig(timeout_seconds=1.0, meeting_seconds=40.0)
    with join_world(parallel) as world:
        first = float(sum_over(world, torch.ones(1)))
    with join_world(parallel) as world:
        second = float(sum_over(world, torch.ones(1)))
        barrier(world)
        if read_rank().number:
            wait_until(Path(over).exists)
            return {"sums": [first, second]}
        waited = []
        for group in (world.control, None):
            began = time.perf_counter()
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError:
                waited.append(time.perf_counter() - began)
        Path(over).touch()
        assert world.preflight is not None
        timed = world.preflight.all_reduce
        return {"sums": [first, second], "waited": waited, "bytes": timed.bytes if timed else None}


def test_meet_all_twice_works_and_groups_wait_as_long_as_the_recipe_says(tmp_path: Path):
    first, second = run_ranks(2, connect_twice_and_wait, tmp_path, str(tmp_path / "over"))
    assert first["sums"] == second["sums"] == [2.0, 2.0]
    assert len(first["waited"]) == 2
    assert all(0.7 < seconds < 30 for seconds in first["waited"])
    assert first["bytes"][:2] == [2**10, 2**20]
