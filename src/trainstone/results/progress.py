"""A glance at a run under way, yielded by flows/bench/run.py and drawn by cli/render/progress.py."""

from typing import NamedTuple


class Progress(NamedTuple):
    """Absent fields are not known yet."""

    phase: str
    step: int | None = None
    images_per_second: float | None = None
    half_width: float | None = None
    seconds_left: float | None = None
    epoch: float | None = None  # epochs trained so far
    epochs: float | None = None  # where training ends at the latest
    loss: float | None = None
    metric: str = "top1"  # what `accuracy` is
    accuracy: float | None = None  # the best so far, or the latest
    images: int | None = None  # evaluation: images judged so far
    total_images: int | None = None
