"""A glance at a run under way, yielded by train/run.py and drawn by cli/progress.py."""

from typing import NamedTuple


class Progress(NamedTuple):
    """Absent fields are not known yet."""

    phase: str
    step: int | None = None
    images_per_second: float | None = None
    half_width: float | None = None
    seconds_left: float | None = None
