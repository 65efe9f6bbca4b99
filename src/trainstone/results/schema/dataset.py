"""What `trainstone data info` finds out about a data set: plain records, for --json and the page alike.

All text is made printable by who fills them in. What was not counted is absent, never a guess.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainstone.results.schema.record import Count, Record

Share = Annotated[float, Field(ge=0, le=1)]


class Quantiles(Record):
    minimum: float
    p5: float
    median: float
    p95: float
    maximum: float
    mean: float


class SizeCount(Record):
    width: Count
    height: Count
    images: Count


class BadRecord(Record):
    where: str
    why: str


class LookedAt(Record):
    """What a sample of a split's images, evenly spaced, tells about all of them."""

    images: Count
    width: Quantiles
    height: Quantiles
    bytes: Quantiles  # of an image as it is stored
    kinds: dict[str, Count]  # jpeg, png ... and how many
    colours: dict[str, Count]
    sizes: list[SizeCount]  # most frequent first


class BoxCounts(Record):
    boxes: Count
    images: Count  # in so many images they were counted
    per_image: dict[int, Count]  # so many images have so many boxes


class SplitSummary(Record):
    name: str
    records: Count
    bytes: Count | None = None  # of its files, where they are its own
    shards: Count | None = None
    class_counts: list[Count]  # images (detection: boxes) of each class, in the order of classes
    outside: Count = 0  # labels that no class has
    unlabelled: Count = 0  # images (classification) without a class
    counted: Count  # so many records were asked for their labels; fewer than `records` makes the counts a sample
    boxes: BoxCounts | None = None
    looked_at: LookedAt | None = None
    num_bad: Count = 0  # seen on the way, not searched for
    bad: list[BadRecord] = Field(default_factory=list)  # the first of them


class ClassSummary(Record):
    name: str
    text: str = ""


class SampleBox(Record):
    """A box on a sample; edges are shares of the image's sides."""

    text: str
    left: Share
    top: Share
    right: Share
    bottom: Share
    crowd: bool = False


class DatasetSample(Record):
    split: str
    name: str
    label: str
    width: Count  # of the small image, as is the height
    height: Count
    jpeg_base64: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
    boxes: list[SampleBox] = Field(default_factory=list)


class DatasetSummary(Record):
    path: str
    kind: Literal["classify", "detect"]
    storage: str
    name: str
    classes: list[ClassSummary]
    splits: list[SplitSummary]
    samples: list[DatasetSample]
