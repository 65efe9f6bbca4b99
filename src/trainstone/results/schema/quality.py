"""What result.json says of learning: every evaluation, the best of them, the time to the target; train --runs."""

from typing import Annotated, Literal

from pydantic import Field

from trainstone.results.schema.record import Count, Record, Seconds


class Evaluation(Record):
    epoch: float  # epochs trained before it
    step: Count  # steps trained before it
    seconds: Seconds  # on the run's clock, when it was over
    eval_seconds: Seconds
    metrics: dict[str, float]  # top1, top5, loss; or COCO's twelve: map, map50, map75, map_small ... recall_large
    images: Count  # images judged, each once


class QualityTable(Record):
    name: str  # in files and links: precision-recall, ap-by-class
    title: str
    drawn: Literal["table", "bars", "lines"]
    """table: as it is. bars: the first column names, the second is how long. lines: x, y, which line."""
    columns: list[str]
    rows: list[list[str | float | None]]
    note: str = ""  # how to read it, or what is left out


class ShownBox(Record):
    """A rectangle in an image; edges are shares of its width and height."""

    label: str
    left: float
    top: float
    right: float
    bottom: float
    score: float | None = None  # how sure the network is; None: the box is the true one
    right_one: bool | None = None
    """Found boxes: a true one of its class is there (overlap of 0.5). True boxes: it was found."""


class QualitySample(Record):
    file: str  # in the run folder: samples/000000000139.jpg, perhaps smaller than the image itself
    title: str
    width: Count
    height: Count
    boxes: list[ShownBox] = []


class Quality(Record):
    metric: str
    value: float | None = None
    """The best so far; the one that reached the target, where one did. None: a run that is never evaluated."""
    target: float | None = None
    seconds_to_target: Seconds | None = None
    """On the run's clock, from the first touch of training data to the end of the evaluation that reached it."""
    epochs: float  # trained, until the end or the target
    steps: Count | None = None  # the same in steps
    history: list[Evaluation] = []
    starts: Count = 1  # how often the run was started: 1, and once more for each --resume
    parameters: Count | None = None  # trained numbers of the network
    global_batch: Count | None = None  # images a step, of all ranks
    tables: list[QualityTable] = []  # of the evaluation that `value` is of
    samples: list[QualitySample] = []  # some of that evaluation's


class TrainedRun(Record):
    seed: Annotated[int, Field(ge=0)]
    run: str  # its folder
    status: str
    value: float | None = None  # the metric at its best; where the target was reached, then
    epochs: float | None = None
    seconds_to_target: Seconds | None = None
    reached: bool = False
    counted: bool = False  # in score_seconds; the fastest and the slowest are not
    starts: Count = 1


class Repeated(Record):
    """train --runs: the same training with seeds counted up."""

    num_runs: Annotated[int, Field(ge=2, le=2**31)]  # asked for
    first_seed: Annotated[int, Field(ge=0)]
    strict: bool = False
    runs: list[TrainedRun] = []  # those that were begun, by seed
    score_seconds: Seconds | None = None
    """Olympic mean of the times to the target: without the fastest and the slowest run, as MLPerf scores."""
    score_epochs: float | None = None  # the same of the epochs to the target

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.num_runs)
