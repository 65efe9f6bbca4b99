"""Training quality in result.json: every evaluation, the best of them, the time to the target; train --runs."""

from typing import Annotated, Literal

from pydantic import Field

from trainstone.results.schema.record import Count, Record, Seconds


class Evaluation(Record):
    epoch: float  # epochs trained before the evaluation
    step: Count  # steps trained before the evaluation
    seconds: Seconds  # run clock at the end of the evaluation
    eval_seconds: Seconds  # duration of the evaluation
    metrics: dict[str, float]  # top1, top5, loss; of detection COCO's twelve: map, map50 ... recall_large
    images: Count  # evaluated, each once


class QualityTable(Record):
    name: str  # in files and links: precision-recall, ap-by-class
    title: str
    drawn: Literal["table", "bars", "lines"]
    """table: as a table. bars: first column names the bar, second is its length. lines: x, y, name of the line."""
    columns: list[str]
    rows: list[list[str | float | None]]
    note: str = ""  # how to read it, or what is missing


class ShownBox(Record):
    """A rectangle in an image; edges are shares of its width and height."""

    label: str
    left: float
    top: float
    right: float
    bottom: float
    score: float | None = None  # confidence of the network; absent: a true box
    correct: bool | None = None
    """Detections: they match a true box of their class (IoU 0.5). True boxes: they were detected."""


class QualitySample(Record):
    file: str  # in the run folder: samples/000000000139.jpg, possibly downscaled
    title: str
    width: Count
    height: Count
    boxes: list[ShownBox] = []


class Quality(Record):
    metric: str  # name of the metric
    value: float | None = None
    """The value that reached the target, or the best so far. Absent: the run was never evaluated."""
    target: float | None = None  # eval.target of the recipe
    seconds_to_target: Seconds | None = None
    """Run clock, from the first access to training data to the end of the evaluation that reached the target."""
    epochs: float  # trained until the end or the target
    steps: Count | None = None  # trained until the end or the target
    history: list[Evaluation] = []  # all evaluations
    starts: Count = 1  # how often the run was started: 1, plus 1 for each --resume
    parameters: Count | None = None  # trainable parameters of the network
    global_batch: Count | None = None  # images per step, all ranks
    tables: list[QualityTable] = []  # of the evaluation that gave `value`
    samples: list[QualitySample] = []  # images of that evaluation with their boxes


class TrainedRun(Record):
    seed: Annotated[int, Field(ge=0)]
    run: str  # run folder
    status: str
    value: float | None = None  # the metric when the target was reached, or the best
    epochs: float | None = None
    seconds_to_target: Seconds | None = None
    reached: bool = False
    counted: bool = False  # used in score_seconds; the fastest and the slowest run are not
    starts: Count = 1


class Repeated(Record):
    """train --runs: the same training with consecutive seeds."""

    num_runs: Annotated[int, Field(ge=2, le=2**31)]  # requested
    first_seed: Annotated[int, Field(ge=0)]
    strict: bool = False
    runs: list[TrainedRun] = []  # those that have started, by seed
    score_seconds: Seconds | None = None
    """Olympic mean of the times to the target, without the fastest and the slowest run, as in MLPerf."""
    score_epochs: float | None = None  # olympic mean of the epochs to the target

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.num_runs)
