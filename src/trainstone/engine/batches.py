"""Batches on the device: synthetic batches, and prefetching to CUDA devices."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

import torch

from trainstone.config.schema import Config
from trainstone.data.loader import KEEP
from trainstone.workloads.registry import WORKLOADS
from trainstone.workloads.workload import Batch


def synthetic_batches(config: Config, device: torch.device) -> Iterator[Batch]:
    """Yield the same few random batches forever, in host memory."""
    batches = WORKLOADS[config.workload].synthetic_batches(config, config.train.batch_size)
    if device.type == "cuda":  # pinned memory allows asynchronous copies
        batches = [tuple(tensor.pin_memory() for tensor in batch) for batch in batches]
    return itertools.cycle(batches)


def prefetch_to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on the device. On CUDA the next batch is copied on its own stream during the step."""
    if device.type == "cpu":
        yield from batches
    elif device.type == "cuda":
        yield from _prefetch_to_cuda(batches, device)
    else:
        for batch in batches:
            yield tuple(tensor.to(device, non_blocking=True) for tensor in batch)


def _prefetch_to_cuda(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy one batch ahead of the step.

    The loader (data/loader.py) reuses the memory of a batch when two more have been requested, so the next batch is
    requested only when the copy of the one before the last has ended.
    """
    copies = torch.cuda.Stream(device)
    copied: deque[torch.cuda.Event] = deque()
    upcoming: Batch | None = None
    for batch in batches:
        current = upcoming
        if current is not None:
            torch.cuda.current_stream(device).wait_stream(copies)
            for tensor in current:
                tensor.record_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copies):
            upcoming = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
            copied.append(copies.record_event(torch.cuda.Event(blocking=True)))
        if current is not None:
            yield current
        if len(copied) >= KEEP:
            copied.popleft().synchronize()
    if upcoming is not None:
        torch.cuda.current_stream(device).wait_stream(copies)
        yield upcoming
