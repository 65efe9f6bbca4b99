"""What result.json says of learning: every evaluation, the best of them, the time to the target; train --runs."""

from typing import Annotated, Any

from pydantic import Field

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
    value: float | None = None
    """The best so far; the one that reached the target, where one did. None: a run that is never evaluated."""
    target: float | None = None
    seconds_to_target: Seconds | None = None
    """On the run's clock, from the first touch of training data to the end of the evaluation that reached it."""
    epochs: float
    """Trained, until the end or the target."""
    steps: Count | None = None
    """The same in steps."""
    history: list[Evaluation] = []
    starts: Count = 1
    """How often the run was started: 1, and once more for each --resume."""
    parameters: Count | None = None
    """Trained numbers of the network."""
    global_batch: Count | None = None
    """Images a step, of all ranks."""
    tables: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []


class TrainedRun(Record):
    """One of train --runs."""

    seed: Annotated[int, Field(ge=0)]
    run: str
    """Its folder."""
    status: str
    value: float | None = None
    """The metric at its best; where the target was reached, then."""
    epochs: float | None = None
    seconds_to_target: Seconds | None = None
    reached: bool = False
    counted: bool = False
    """In score_seconds; the fastest and the slowest are not."""
    starts: Count = 1


class Repeated(Record):
    """train --runs: the same training with seeds counted up."""

    num_runs: Annotated[int, Field(ge=2, le=2**31)]
    """Asked for."""
    first_seed: Annotated[int, Field(ge=0)]
    strict: bool = False
    runs: list[TrainedRun] = []
    """Those that were begun, by seed."""
    score_seconds: Seconds | None = None
    """Olympic mean of the times to the target: without the fastest and the slowest run, as MLPerf scores."""
    score_epochs: float | None = None
    """The same of the epochs to the target."""

    @property
    def seeds(self) -> range:
        """Return the seed of each run."""
        return range(self.first_seed, self.first_seed + self.num_runs)
