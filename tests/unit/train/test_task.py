import itertools

import torch

from trainstone.config.load import load_config
from trainstone.measure.clock import HostTimer
from trainstone.train.loop import train_steps
from trainstone.train.network import apply_process_settings, seed_network
from trainstone.train.task import build_task

CPU = torch.device("cpu")
TINY = ["model.depth=18", "data.image_size=32", "train.precision=fp32", "train.batch_size=2", "engine.threads=1"]


def losses(*settings: str) -> list[float]:
    task = build_task(load_config("resnet50", settings=[*TINY, *settings]), CPU)
    return [record.loss for record in train_steps(task, HostTimer(), num_steps=4)]


def test_the_same_seed_gives_the_same_bits():
    assert losses() == losses()
    assert losses() != losses("seed=1")


def test_channels_last_and_not_are_the_same_mathematics():
    last = losses()
    first = losses("engine.channels_last=false")
    assert abs(last[0] - first[0]) < 1e-4


def test_batches_are_the_seeds_and_come_in_turn():
    task = build_task(load_config("resnet50", settings=[*TINY, "data.num_synthetic_batches=2"]), CPU)
    a, b, again = (batch[0] for batch in itertools.islice(task.batches, 3))
    assert a.dtype == torch.uint8
    assert a.shape == (2, 32, 32, 3)
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_everything_is_channels_last():
    task = build_task(load_config("resnet50", settings=TINY), CPU)
    weights = [p for p in task.model.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert weights
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def test_the_optimiser_is_fused():
    task = build_task(load_config("resnet50", settings=TINY), CPU)
    assert task.optimizer.defaults["fused"]


def test_building_applies_what_the_process_has_only_once():
    threads = torch.get_num_threads()
    config = load_config("resnet50", settings=[*TINY, "engine.deterministic=true"])
    try:
        build_task(config, CPU)
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        apply_process_settings(load_config("resnet50", settings=[*TINY, f"engine.threads={threads}"]))
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark


def test_a_network_built_before_is_the_one_that_would_be_built():
    config = load_config("resnet50", settings=TINY)
    within = build_task(config, CPU)
    state = torch.get_rng_state()
    network = seed_network(config, CPU)
    given = build_task(config, CPU, network=network)
    assert given.plain is network
    assert torch.get_rng_state().equal(state)
    for mine, theirs in zip(given.plain.parameters(), within.plain.parameters(), strict=True):
        assert mine.equal(theirs)
