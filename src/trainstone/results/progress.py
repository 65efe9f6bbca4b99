"""The progress of a running command, yielded by flows/ and drawn by cli/render/progress.py."""

from typing import NamedTuple


class Progress(NamedTuple):
    """A progress update; None is not known yet."""

    phase: str
    step: int | None = None
    images_per_second: float | None = None
    half_width: float | None = None
    seconds_left: float | None = None
    epoch: float | None = None  # epochs trained so far
    epochs: float | None = None  # maximum number of epochs
    loss: float | None = None
    metric: str = "top1"  # what `accuracy` is
    accuracy: float | None = None  # the best so far, or the latest
    images: int | None = None  # evaluation: images evaluated so far
    total_images: int | None = None
