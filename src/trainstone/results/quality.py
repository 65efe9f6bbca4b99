"""What result.json says of learning: every evaluation, the best of them, the time to the target."""

from typing import Any

from trainstone.results.record import Count, Record, Seconds


class Evaluation(Record):
    """The validation pictures judged once."""

    epoch: float
    """Epochs trained before it."""
    step: Count
    """Steps trained before it."""
    seconds: Seconds
    """On the run's clock, when it was over."""
    eval_seconds: Seconds
    metrics: dict[str, float]
    """top1, top5, loss."""
    images: Count
    """Pictures judged, each once."""


class Quality(Record):
    """Whether it learned: the metric at its best, and how it came there."""

    metric: str
    value: float
    """The best so far; the one that reached the target, where one did."""
    target: float | None = None
    seconds_to_target: Seconds | None = None
    """On the run's clock, from the first touch of training data to the end of the evaluation that reached it."""
    epochs: float
    """Trained, until the end or the target."""
    history: list[Evaluation] = []
    starts: Count = 1
    """How often the run was started: 1, and once more for each --resume."""
    parameters: Count | None = None
    """Trained numbers of the network."""
    global_batch: Count | None = None
    """Images a step, of all ranks."""
    tables: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
