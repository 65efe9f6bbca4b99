"""Result of `trainstone data bench`: how fast a data set is read, decoded and batched, and which devices that feeds."""

from typing import Annotated

from pydantic import Field

from trainstone.results.schema.record import Count, Rate, Record, Seconds

Positive = Annotated[int, Field(ge=1, le=2**31)]


class Stage(Record):
    name: str  # read, decode, crop-resize or batch
    seconds_per_image: Seconds
    share: Annotated[float, Field(ge=0, le=1)]  # of the sum of all stages


class ThreadPoint(Record):
    threads: Positive  # loader threads
    images_per_second: Rate
    ci95: tuple[float, float] | None = None  # 95 % confidence interval
    ci_covers: str  # "within this run", or "not established: <why>"
    cpu_cores: Rate | None = None
    """CPU seconds used by the whole process per second; with hardware threads it can exceed the number of cores."""
    images_per_second_per_core: Rate  # images/s divided by the cores used


class Demand(Record):
    device: str  # name of the device; empty if --demand gave only a number
    devices: Positive
    images_per_second: Rate  # what all devices together can train
    how: str  # what was measured, or "given"


class DataBenchResult(Record):
    path: str  # of the data set
    storage: str  # format of the files
    split: str  # that was read
    images: Count  # in the split
    image_bytes: float  # mean stored size of an image that was read
    image_size: Positive  # pixels per side of a batch's images
    batch_size: Positive
    transform: str  # crop, resize and flip, in words
    decode: str  # fast or exact
    cpu: str  # name of the processor
    cores: Positive  # physical cores available to this process
    points: Annotated[list[ThreadPoint], Field(min_length=1)]  # one per number of threads
    stages: list[Stage]  # where the threads spend their time
    skipped: Count  # damaged images
    demand: Demand | None = None  # what the devices need
