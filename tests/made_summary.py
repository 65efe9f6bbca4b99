"""A made-up data set, as `data info` describes it."""

from trainstone.results.dataset import (
    BadRecord,
    BoxCounts,
    ClassSummary,
    DatasetSummary,
    LookedAt,
    Quantiles,
    SampleBox,
    SamplePicture,
    SizeCount,
    SplitSummary,
)

# One grey pixel
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU"
    "GBIUFRT/wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAACf/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AKp//2Q=="
)


def spread(low: float, high: float) -> Quantiles:
    return Quantiles(minimum=low, p5=low, median=(low + high) / 2, p95=high, maximum=high, mean=(low + high) / 2)


def make_split(name: str, counts: list[int], **changes) -> SplitSummary:
    looked = LookedAt(
        pictures=5,
        width=spread(300, 500),
        height=spread(200, 400),
        bytes=spread(1000, 3000),
        kinds={"jpeg": 4, "png": 1},
        colours={"rgb": 5},
        sizes=[SizeCount(width=500, height=375, pictures=4), SizeCount(width=300, height=200, pictures=1)],
    )
    given = {"records": sum(counts), "counted": sum(counts), "looked_at": looked, **changes}
    return SplitSummary(name=name, class_counts=counts, **given)


def make_summary(num_classes: int = 3, *, text: str = "thing", detect: bool = False) -> DatasetSummary:
    counts = [number % 7 + 1 for number in range(num_classes)]
    boxes = BoxCounts(boxes=sum(counts), pictures=4, per_picture={0: 1, 2: 2, 90: 1}) if detect else None
    bad = [BadRecord(where=f"{text}.rec, byte 8", why=text)]
    box = SampleBox(text=text, left=0.25, top=0, right=0.75, bottom=1, crowd=True)
    return DatasetSummary(
        path=text,
        kind="detect" if detect else "classify",
        storage=text,
        name=text,
        classes=[ClassSummary(name=f"n{number}", text=f"{text} {number}") for number in range(num_classes)],
        splits=[
            make_split("train", counts, boxes=boxes, num_bad=1, bad=bad, shards=2, bytes=2**20),
            make_split("val", counts, boxes=boxes, outside=3, unlabelled=4),
        ],
        samples=[
            SamplePicture(split="train", name=text, label=text, width=40, height=20, jpeg_base64=JPEG, boxes=[box])
        ],
    )
