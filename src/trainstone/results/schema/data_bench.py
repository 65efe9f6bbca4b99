"""What `trainstone data bench` finds out: how fast a data set can be read, decoded and batched; for what that does."""

from typing import Annotated

from pydantic import Field

from trainstone.results.schema.record import Count, Rate, Record, Seconds

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


class DataBenchResult(Record):
    path: str
    storage: str
    split: str
    images: Count
    image_bytes: float  # mean of those read, as they are stored
    image_size: Positive
    batch_size: Positive
    transform: str
    decode: str
    cpu: str
    cores: Positive  # physical cores that this process may use
    points: Annotated[list[ThreadPoint], Field(min_length=1)]
    stages: list[Stage]
    skipped: Count  # images that could not be used
    demand: Demand | None = None
