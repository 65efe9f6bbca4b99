"""Result of `trainstone data info`: records of a data set, for --json and the page.

All text is printable. What was not counted is absent.
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


class SampledImages(Record):
    """Statistics of evenly spaced images of a split."""

    images: Count
    width: Quantiles
    height: Quantiles
    bytes: Quantiles  # stored size of an image
    kinds: dict[str, Count]  # jpeg, png ... and how many
    colours: dict[str, Count]
    sizes: list[SizeCount]  # most frequent first


class BoxCounts(Record):
    boxes: Count
    images: Count  # in which boxes were counted
    per_image: dict[int, Count]  # number of boxes: number of images that have so many


class SplitSummary(Record):
    name: str
    records: Count
    bytes: Count | None = None  # of its files, if no other split shares them
    shards: Count | None = None
    class_counts: list[Count]  # images (detection: boxes) of each class, in the order of classes
    outside: Count = 0  # labels that are not a class
    unlabelled: Count = 0  # images (classification) without a class
    counted: Count  # records whose labels were read; if fewer than `records`, the counts are of a sample
    boxes: BoxCounts | None = None
    sampled: SampledImages | None = None
    num_bad: Count = 0  # damaged images met; `data verify` finds all
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
