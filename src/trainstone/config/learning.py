"""What a recipe may say of learning: the update, its schedule, evaluation, when to stop, checkpoints, many ranks."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from trainstone.config.section import Section

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


def check_rising(epochs: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse epochs out of order."""
    if list(epochs) != sorted(set(epochs)) or any(epoch <= 0 for epoch in epochs):
        raise ValueError("epochs are positive and rise")
    return epochs


# TOML has lists only, which strict models would refuse.
Epochs = Annotated[tuple[float, ...], Field(strict=False), AfterValidator(check_rising)]
Adapted = Annotated[tuple[Literal["batch_size", "precision"], ...], Field(strict=False)]


class TrainConfig(Section):
    """The arithmetic of a step."""

    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Images a device and step. auto: CPU: one image a thread (2 to 64), fewer if 50 steady steps would not fit
    into the time; other devices: 256, halved until it fits into memory."""
    accumulate: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Batches whose gradients are averaged before an update: a step has batch_size x accumulate images a device."""
    precision: Precision | Literal["auto"] = "auto"
    """auto: the fastest that this device really executes, found by a short trial."""
    adapt: Adapted = ()
    """Which of batch_size and precision a machine that cannot do as written may change, with a finding: a recipe for
    eight GPUs then runs on a laptop. `--set` of one of them takes it out."""
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic", "batch"] = "dynamic"
    """fp16 only: a fixed factor, or adapted to overflows. batch: batch_size, so that until the update gradients are
    those of the sum over the batch, as in MXNet."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share a of the target that is taken from the true class."""
    smoothing_over: Literal["all", "others"] = "all"
    """Who gets it. all: every class a/K, the true one too (torch, TensorFlow). others: every other a/(K-1) (MXNet)."""
    mixup: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Mix each picture with another of its batch by a share drawn from Beta(mixup, mixup). 0: off."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Keep an average of the weights that moves by 1 - ema a step (faster in the first steps); evaluation and
    exported weights are the average's. 0: off."""


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["sgd", "lars"] = "sgd"
    """sgd: momentum, torch's fused kernel where there is one. lars: each weight tensor's rate follows its norm."""
    learning_rate: Annotated[float, Field(ge=0)] = 0.01
    """The schedule's highest rate."""
    rate_for: Annotated[int, Field(ge=1)] | Literal["run", "rank"] = "run"
    """What learning_rate is meant for. run: taken as it is. A number: a global batch of so many images; rank: one
    batch of one rank; with others the rate grows (rate_growth)."""
    rate_growth: Literal["linear", "sqrt"] = "linear"
    """Where rate_for is a number: the rate grows with the global batch, or with its square root."""
    rate_unit: Annotated[float, Field(gt=0)] | None = None
    """The rate that comes of rate_for is rounded to a multiple of this, at least one."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum (no Nesterov)."""
    momentum_correction: bool = True
    """When the rate changes, change past momentum with it (torch, TensorFlow 1, the MLPerf LARS). false: Keras."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-5
    """Factor d of the decay d x w."""
    decay: Literal["all", "not_norm", "weights"] = "all"
    """What decays. all: every parameter. not_norm: not those of normalisation. weights: neither those nor biases."""
    decay_in: Literal["optimizer", "loss"] = "optimizer"
    """loss: as a term d/2 x sum of squares, part of the loss that is recorded; the same gradient for sgd."""
    lars_eta: Annotated[float, Field(gt=0)] = 0.001
    """LARS: trust, local rate = eta |w| / (|g| + d |w| + epsilon)."""
    lars_epsilon: Annotated[float, Field(ge=0)] = 0.0
    """LARS: keeps the quotient finite."""


class ScheduleConfig(Section):
    """The learning rate over time."""

    name: Literal["constant", "polynomial", "cosine", "steps"] = "constant"
    """After the warm-up. steps: times decay_factor at each of decay_epochs."""
    by: Literal["step", "epoch"] = "step"
    """How often the rate changes: at every step, or when an epoch begins."""
    warm_up_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Rise evenly to the full rate over so many epochs."""
    warm_up_by: Literal["steps", "pictures"] = "steps"
    """What an epoch of warm-up is where loader.last makes epochs of whole steps: those steps, or its pictures."""
    warm_up_from: Annotated[float, Field(ge=0, le=1)] | Literal["rank"] = 0.0
    """Share of the full rate that the warm-up begins with; rank: 1 / number of ranks."""
    first_step: Literal[0, 1] = 0
    """What the formulas call the first step: 0: its rate is where the warm-up begins; 1: one step further."""
    end_rate: Annotated[float, Field(ge=0)] = 0.0
    """Polynomial and cosine: rate at the end of stop.epochs."""
    power: Annotated[float, Field(gt=0)] = 2.0
    """Polynomial: end + (rate - end) x (1 - progress) ^ power."""
    warm_up_offset: bool = True
    """Polynomial and cosine: progress counts from the warm-up's end; false: from the beginning, which makes the rate
    jump there."""
    decay_epochs: Epochs = ()
    """Steps: when the rate falls."""
    decay_factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Steps: by how much."""
    decay_late: bool = False
    """Steps: the step at a border still has the rate before it, as in TensorFlow's piecewise_constant."""
    pictures: Annotated[int, Field(ge=1)] | None = None
    """Pictures of an epoch, for the rate alone. Absent: what an epoch really has."""


class EvalConfig(Section):
    """When and how the validation pictures are judged."""

    metric: Literal["top1", "top5", "map", "map50"] = "top1"
    """What counts. top1, top5: share of pictures whose class is the first, or among the first five, of the network's
    guesses. map: COCO's mean average precision, at overlaps of 0.5 to 0.95; map50: at 0.5."""
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop when the metric is at least this."""
    every_epochs: Annotated[int, Field(ge=0)] = 1
    """Evaluate after every so many epochs, and after the last (at_end). 0: after the last alone."""
    offset: Annotated[int, Field(ge=0)] | None = None
    """After epochs e = 0, 1, ... with e mod every_epochs = offset. Absent: every_epochs - 1."""
    at_epochs: Epochs = ()
    """After these epochs instead of every_epochs."""
    async_: bool = False
    """Train on while found boxes are scored; what comes of it is known an epoch later, and at the end."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Images a device and step of evaluation. auto: that of training, at least 32."""
    at_end: bool = True
    """After the last epoch, too, where the rhythm does not fall on it. A run that ends earlier, or would never be
    judged, is judged at its end all the same."""
    drop_rest: bool = False
    """Leave out the pictures that do not fill a last batch of eval.batch_size."""

    @model_validator(mode="after")
    def check_offset(self) -> "EvalConfig":
        """An offset that never comes would never evaluate."""
        if self.offset is not None and self.offset >= max(1, self.every_epochs):
            raise ValueError(f"eval.offset = {self.offset} must be less than eval.every_epochs = {self.every_epochs}")
        return self


class StopConfig(Section):
    """When training ends, target or not; the first that is true counts."""

    epochs: Annotated[float, Field(gt=0)] = 90.0
    """Epochs; also the length of the schedule."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Steps (`train --iterations`). 0: no limit."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Time on the run's clock, evaluation and checkpoints included (`train --seconds`). 0: no limit."""


class CheckpointConfig(Section):
    """What is kept of a training run so that it can go on."""

    every_epochs: Annotated[float, Field(ge=0)] = 1.0
    """Write one after so many epochs. 0: not by epochs."""
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Write one after so many steps. 0: not by steps."""
    every_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Write one when the last is so old. 0: not by time."""
    keep: Annotated[int, Field(ge=1)] = 2
    """How many of the latest stay."""
    best: bool = True
    """Keep the one with the best metric, too: checkpoints/best.safetensors."""


class ParallelConfig(Section):
    """Many ranks: how gradients are averaged and batch norm is shared."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: nccl where ranks have CUDA devices, else gloo."""
    bucket_bytes: Annotated[int, Field(ge=1024)] = 25 * 2**20
    """Gradients are sent in parcels of so many bytes."""
    static_graph: bool = False
    """Promise that every step does the same work: saves DistributedDataParallel some of its own."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Send gradients with 16 bits."""
    bn_ranks: Annotated[int, Field(ge=1)] = 1
    """Batch norm over the batches of so many neighbouring ranks."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a rank waits for the others once they have met."""
    meeting_seconds: Annotated[float, Field(gt=0)] = 45.0
    """How long ranks wait at the start until all are there."""
    interface: Annotated[str, Field(min_length=1)] | None = None
    """Network interface of the traffic between hosts. Absent: the one that leads to the first rank's host."""


class TrackingConfig(Section):
    """Other places to write the curves to (extra `tracking`)."""

    tensorboard: bool = False
    """TensorBoard events in the run folder, below tensorboard/."""
    mlflow: Annotated[str, Field(min_length=1)] | None = None
    """MLflow: the tracking URI, for example sqlite:///mlflow.db or http://localhost:5000."""
