"""What `trainstone data bench` finds out: how fast a data set can be read, decoded and batched; for what that does."""

import math
from typing import Annotated

from pydantic import Field

from trainstone.results.schema.record import Count, Rate, Record, Seconds
from trainstone.units import format_count, format_rate

# Stages as a sentence names them
WORK = {"read": "reading", "decode": "decoding", "crop-resize": "cropping and resizing", "batch": "making batches"}

Positive = Annotated[int, Field(ge=1, le=2**31)]


class Stage(Record):
    name: str  # read, decode, crop-resize or batch
    seconds_per_image: Seconds
    share: Annotated[float, Field(ge=0, le=1)]  # of the sum of all stages


class ThreadPoint(Record):
    threads: Positive
    images_per_second: Rate
    ci95: tuple[float, float] | None = None
    ci_covers: str  # "within this run", or "not established: <why>"
    cpu_cores: Rate | None = None
    """CPU seconds that the whole process used in a second; with hardware threads more than there are cores."""
    images_per_second_per_core: Rate  # by `rate_per_core`


class Demand(Record):
    device: str  # its name; where the CPU trains the same as `Feeding.cpu`; empty where nobody said
    devices: Positive
    images_per_second: Rate  # of all devices
    how: str  # how it is known: what was measured, or "given"


class Feeding(Record):
    path: str
    storage: str
    split: str
    pictures: Count
    picture_bytes: float  # mean of those read, as they are stored
    image_size: Positive
    batch_size: Positive
    transform: str
    decode: str
    cpu: str
    cores: Positive  # physical cores that this process may use
    points: Annotated[list[ThreadPoint], Field(min_length=1)]
    stages: list[Stage]
    skipped: Count  # pictures that could not be used
    demand: Demand | None = None


def rate_per_core(images_per_second: float, threads: int, cpu_cores: float | None, cores: int) -> float:
    """Return images a second of one core kept busy; where CPU time is not known a thread counts as a core.

    At most all `cores` were busy: two hardware threads of a core use two CPU seconds a second, and are one core.
    """
    return images_per_second / min(cpu_cores or threads, cores)


def best_point(feeding: Feeding) -> ThreadPoint:
    return max(feeding.points, key=lambda point: point.images_per_second)


def widest_point(feeding: Feeding) -> ThreadPoint:
    """Return the one with most threads: the rate a core usually falls with them, so that any other promises more."""
    return max(feeding.points, key=lambda point: point.threads)


def cores_needed(feeding: Feeding) -> float | None:
    if feeding.demand is None:
        return None
    return feeding.demand.images_per_second / widest_point(feeding).images_per_second_per_core


def largest_stage(feeding: Feeding) -> Stage | None:
    return max(feeding.stages, key=lambda stage: stage.seconds_per_image, default=None)


def describe_demand(feeding: Feeding, demand: Demand, workload: str = "training") -> str:
    """Return ResNet-50 on 8 x NVIDIA A100 takes 20,000 images/s, which take 34 cores; 2 here do not reach that."""
    own = demand.device == feeding.cpu  # the cores that load are those that train
    device = "this CPU" if own else demand.device
    where = f" on {demand.devices} x {device}" if device and demand.devices > 1 else f" on {device}" if device else ""
    needed = demand.images_per_second / widest_point(feeding).images_per_second_per_core
    reached = best_point(feeding).images_per_second >= demand.images_per_second
    share = f"{format_cores(needed)} cores; {feeding.cores:,} here{', which also train,' if own else ''}"
    enough = "reach" if reached else "do not reach"
    return f"{workload}{where} takes {format_rate(demand.images_per_second)} images/s, which take {share} {enough} that"


def describe_cores(feeding: Feeding) -> str:
    widest = widest_point(feeding)
    per_core, threads = format_rate(widest.images_per_second_per_core), format_count(widest.threads, "thread")
    core = f"A core feeds {per_core} images/s with {threads}."
    if feeding.demand is None:
        return f"{core} A training that takes N images/s needs N / {per_core} cores to feed it."
    told = describe_demand(feeding, feeding.demand, f"Training ({feeding.demand.how})")
    return f"{core} {told}."


def describe_covers(feeding: Feeding) -> list[str]:
    return list(dict.fromkeys(f"95 % interval {point.ci_covers}" for point in feeding.points))


def format_cores(cores: float) -> str:
    """Return 34 or 3.41, never less than are needed by more than a hundredth."""
    return f"{math.ceil(cores):,}" if cores >= 10 else f"{max(0.01, cores):.2f}"


def format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 99.95e-6 else f"{seconds * 1e6:.3g}"
