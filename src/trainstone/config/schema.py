"""Schema of recipe and system files: one strict pydantic model per section; the text under a key documents it.

Pass a function the section it needs, not the whole Config. Loading and `--set` are in config/load.py.
"""

from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Share = Annotated[float, Field(ge=0, le=1)]


def check_range(ends: tuple[float, float]) -> tuple[float, float]:
    if not 0 < ends[0] <= ends[1]:
        raise ValueError("expected [low, high] with 0 < low <= high")
    return ends


def check_order(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError("expected [low, high] with low <= high")
    return ends


def check_rising(epochs: tuple[float, ...]) -> tuple[float, ...]:
    if list(epochs) != sorted(set(epochs)) or any(epoch <= 0 for epoch in epochs):
        raise ValueError("expected positive epochs in rising order")
    return epochs


# TOML has only lists, which a strict model refuses for a tuple; the numbers in them stay strict.
Range = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_range)]
_Share = Annotated[float, Field(le=1, strict=True)]
ShareRange = Annotated[tuple[_Share, _Share], Field(strict=False), AfterValidator(check_range)]
AnyRange = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_order)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1, strict=True)], ...], Field(strict=False)]
StepRange = Annotated[
    tuple[Annotated[int, Field(ge=0, strict=True)], Annotated[int, Field(ge=1, strict=True)]], Field(strict=False)
]
Epochs = Annotated[tuple[float, ...], Field(strict=False), AfterValidator(check_rising)]
AdaptableKeys = Annotated[tuple[Literal["batch_size", "precision"], ...], Field(strict=False)]


class ConfigSection(BaseModel):
    """Base class of all sections: strict types (no text for a number), frozen, no unknown keys.

    A key that is a Python keyword gets a trailing _ in Python only: eval.async is EvalConfig.async_.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        alias_generator=lambda name: name.removesuffix("_"),
        serialize_by_alias=True,
    )


class ModelConfig(ConfigSection):
    """Network architecture and initial weights."""

    name: Literal["resnet", "ssd"] = "resnet"
    """Network family. resnet: image classifier. ssd: object detector on the first stages of a ResNet-18 or -34."""
    depth: Literal[18, 34, 50, 101, 152] = 50
    """Number of layers of the ResNet v1.5 (stride on the 3x3 convolution). ssd: 18 or 34."""
    num_classes: Annotated[int, Field(ge=1)] | Literal["auto"] = 1000
    """Number of outputs; 1001 adds the background class of the TensorFlow originals. auto: the classes of the data set.
    ssd: without the background class, which the model adds."""
    pretrained: Annotated[str, Field(min_length=1)] | None = None
    """File with ResNet weights to start from, written by `trainstone weights convert`. An unknown name or another shape
    is an error; layers that the model lacks (ssd: last stage, classifier) are skipped."""
    conv_init: Literal["normal_fan_in", "truncated_fan_in", "normal_fan_out", "truncated_fan_out"] = "normal_fan_out"
    """Initial convolution weights: a normal or truncated normal distribution with standard deviation sqrt(2 / fan)."""
    fc_init: Literal["normal_001", "torch_default", "truncated_fan_out"] = "torch_default"
    """Initial weights of the last layer."""
    zero_gamma: bool = False
    """Initialise the last batch-norm scale of every residual block to 0."""
    pool_padding: Literal["symmetric", "same"] = "symmetric"
    """Padding of the first max-pool. symmetric: 1 pixel on each side. same: TensorFlow's SAME."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers. imagenet: 7x7 with stride 2, max-pool. small: 3x3 with stride 2, for images of 32 to 64 pixels."""
    # 8 channels crash oneDNN in the backward pass of a strided 1x1 convolution, channels-last (torch 2.13).
    width: Annotated[int, Field(ge=16, le=1024, multiple_of=8)] = 64
    """Channels of the first stage; each later stage has twice as many as the one before."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation. batch: batch norm per rank, or over parallel.bn_ranks. group: group norm, at most 32 groups."""

    @model_validator(mode="after")
    def check_ssd(self) -> "ModelConfig":
        if self.name == "ssd" and self.depth not in (18, 34):
            raise ValueError(f"invalid model.depth = {self.depth} for model.name = ssd: expected 18 or 34")
        if self.name == "resnet" and self.num_classes == 1:
            raise ValueError("invalid model.num_classes = 1 for model.name = resnet: expected at least 2")
        return self


class DataConfig(ConfigSection):
    """Training and validation images."""

    source: Literal["synthetic", "files", "generated"] = "synthetic"
    """Source of the images. synthetic: random uint8 images from a seed, made before timing starts and held in host
    memory. files: the data set at data.root. generated: drawn images, stored once under $TRAINSTONE_CACHE."""
    root: Annotated[str, Field(min_length=1)] | None = None
    """Data set: class folders, COCO, RecordIO, TFRecord or WebDataset. `--data DIR` sets this and data.source."""
    image_size: Annotated[int, Field(ge=32, le=4096)] = 224
    """Height and width of the network's input in pixels."""
    num_synthetic_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    """Synthetic images: number of different batches, used in turn."""
    generated_train: Annotated[int, Field(ge=1, le=10**7)] = 4000
    """Generated images: size of the training set."""
    generated_val: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Generated images: size of the validation set."""
    generated_clutter: bool = True
    """Generated images: draw other things around and over the object. false: one large object without others; for
    detection, one to four objects and no small ones, instead of up to eight."""
    skip_empty: bool = False
    """Detection: train only on images with at least one box. Records written with --skip-empty have no other images."""

    @model_validator(mode="before")
    @classmethod
    def derive_source(cls, values: Any) -> Any:
        """Set data.source to files when a recipe has data.root and no data.source."""
        if isinstance(values, dict) and values.get("root") is not None and "source" not in values:
            return {**values, "source": "files"}
        return values

    @model_validator(mode="after")
    def check_root(self) -> "DataConfig":
        if self.source == "files" and self.root is None:
            raise ValueError("data.source = files needs data.root, which is not set; give --data DIR")
        return self


class AugmentConfig(ConfigSection):
    """Preprocessing and augmentation of training and validation images."""

    crop: Literal["area", "boxes", "overlap", "centre", "whole"] = "area"
    """Training crop. area: random area and aspect ratio (torchvision, DALI, MXNet). boxes: contains part of an object,
    by TensorFlow's rule. overlap: SSD's; every box has a minimum IoU with the crop (sides, overlaps). centre: as in
    validation. whole: the full image, aspect ratio not kept."""
    area: ShareRange = (0.08, 1.0)
    """Range of a random crop's area, as a share of the image's area."""
    aspect: Range = (3 / 4, 4 / 3)
    """Range of a random crop's width / height, in pixels. Crop overlap: in shares of the image's sides."""
    sides: ShareRange = (0.3, 1.0)
    """Crop overlap: range of the crop's width and height, as shares of the image's."""
    overlaps: Shares = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    """Crop overlap: minimum IoU of the crop and every box. One of these values is drawn, or the full image is used."""
    aspect_distribution: Literal["log", "uniform"] = "log"
    """How crop area draws the aspect ratio. log: log-uniform (torchvision). uniform: as crop boxes always does."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of crops tried until one fits (crop boxes: and covers an object; crop overlap: for each minimum IoU)."""
    min_object_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Crop boxes: minimum share of an object's box inside the crop. Without boxes the full image is the object."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of a horizontal flip."""
    resize: Literal["bilinear", "antialias"] = "bilinear"
    """Training: interpolation. bilinear: of the four nearest pixels (TensorFlow, OpenCV). antialias: of all pixels
    under the new one (Pillow, torchvision), which is slower."""
    saturation: Range = (1.0, 1.0)
    """Training: range of the random saturation factor."""
    hue_degrees: AnyRange = (0.0, 0.0)
    """Training: range of the random hue rotation in degrees."""
    contrast: Range = (1.0, 1.0)
    """Training: range of the random contrast factor, which scales the distance from middle grey."""
    brightness: Range = (1.0, 1.0)
    """Training: range of the random brightness factor, applied after the contrast."""
    val_crop: Literal["centre", "whole"] = "centre"
    """Validation. centre: resize the shorter side to val_shorter, crop the centre. whole: all, aspect not kept."""
    val_shorter: Annotated[int, Field(ge=32, le=4096)] | Literal["auto"] = "auto"
    """Validation: length of the shorter side in pixels before the centre crop. auto: image_size x 256 / 224."""
    val_resize: Literal["bilinear", "antialias"] = "antialias"
    """Validation: interpolation, as in augment.resize."""
    normalise: Literal["standard", "standard_unit", "mean", "mean_255", "wmlce_dali"] = "standard"
    """Pixel normalisation on the device. standard: (x - 255 m) / (255 s); standard_unit: (x / 255 - m) / s; both with
    ImageNet's mean m = .485 .456 .406 and deviation s = .229 .224 .225. mean: x - c; mean_255: (x - c) / 255; both with
    c = 123.68 116.78 103.94. wmlce_dali: (x - (121, 115, 100)) / (70, 68, 71)."""


class LoaderConfig(ConfigSection):
    """Input pipeline from files to batches; it may change the speed, not the images (decode and shrink: slightly)."""

    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Number of decoding threads. auto: the physical cores this process may use."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] = 3
    """Number of batches prepared ahead; limits the memory used."""
    cache: Literal["off", "files", "pixels"] = "off"
    """Images cached in memory, up to loader.cache_bytes. off: none. files: encoded, as stored. pixels: decoded."""
    cache_bytes: Annotated[int, Field(ge=0)] = 2**30
    """Maximum size of the cache; images beyond it are read again each time."""
    decode: Literal["fast", "exact"] = "fast"
    """Training JPEGs: fast or exact inverse cosine transform. Validation is always exact."""
    shrink: bool = True
    """Decode training JPEGs at 1/2, 1/4 or 1/8 of their size when the crop stays larger than the network's input."""
    on_bad: Literal["error", "skip"] = "error"
    """An image that cannot be decoded. error: stop. skip: use another image and count it (loader.skipped)."""
    last: Literal["carry", "drop", "fill", "fill_even"] = "carry"
    """What happens to images that do not fill an epoch's last batch. carry: start the next epoch with them. drop: skip
    them. fill: add images from the epoch's start, so steps per epoch are rounded up. fill_even: as fill, but skip
    images that do not divide evenly among the ranks."""


class DetectConfig(ConfigSection):
    """Detection: matching of default boxes to objects, and selection of detections."""

    match_iou: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A default box is matched to an object when their IoU is above this; each object's best box always is."""
    negatives: Annotated[float, Field(gt=0, le=100)] = 3.0
    """Default boxes without an object that count in the loss, per matched box: those with the highest loss."""
    min_score: Share = 0.0
    """Detections with at most this score are skipped."""
    before_nms: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Maximum detections per image, over all classes, that enter non-maximum suppression: the highest scores."""
    nms_iou: Share = 0.5
    """Of two detections of a class with an IoU above this value, the one with the lower score is removed."""
    max_detections: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Maximum number of detections per image."""
    inclusive_edges: bool = False
    """Evaluation: count a box from 10 to 20 as 11 pixels wide, as the original SSD did. false: 10, as COCO does."""


class TrainConfig(ConfigSection):
    """The training step."""

    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Images per device and step. auto: in bench, the fastest by trials whose steps fit into the time (within 3 %, the
    smallest); in train, 32 on a CPU, 256 on other devices, halved until it fits into memory."""
    accumulate: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Batches whose gradients are averaged before an update; a step has batch_size x accumulate images per device."""
    precision: Precision | Literal["auto"] = "auto"
    """Numeric precision. auto: the fastest that this device really executes, found by trial; fp32 if undecided."""
    adapt: AdaptableKeys = ()
    """Keys that may change, with a finding, on a machine that cannot run them as written; `--set KEY` removes one."""
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic", "batch"] = "dynamic"
    """fp16: loss scale. A number is fixed. dynamic: follows overflows. batch: batch_size, so that gradients before the
    update are those of the sum over the batch, as in MXNet."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing: share a of the target that is taken from the true class."""
    smoothing_classes: Literal["all", "others"] = "all"
    """Classes that get the share a of label_smoothing. all: a/K for each of K classes, the true one included (torch,
    TensorFlow). others: a/(K-1) for each other class (MXNet)."""
    mixup: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Mixup: mix each image with another of its batch by a share drawn from Beta(mixup, mixup). 0: off."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the moving average of weights for evaluation and export; lower in the first steps. 0: no average."""


class OptimizerConfig(ConfigSection):
    """Optimizer, weight decay and base learning rate."""

    name: Literal["sgd", "lars"] = "sgd"
    """sgd: SGD with momentum, fused where torch has it. lars: the rate of each weight tensor follows its norm."""
    learning_rate: Annotated[float, Field(ge=0)] = 0.01
    """Peak learning rate of the schedule."""
    rate_for: Annotated[int, Field(ge=1)] | Literal["run", "rank"] = "run"
    """Batch that learning_rate is meant for. run: any; the rate is used as written. A number: a global batch of that
    size. rank: the batch of one rank. For another batch the rate is scaled (rate_scaling)."""
    rate_scaling: Literal["linear", "sqrt"] = "linear"
    """How the rate scales with the global batch if rate_for is a number: in proportion or by the square root."""
    rate_unit: Annotated[float, Field(gt=0)] | None = None
    """Round the scaled rate to a multiple of this value, at least one."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum (no Nesterov)."""
    momentum_correction: bool = True
    """Rescale past momentum when the learning rate changes (torch, TensorFlow 1, the MLPerf LARS). false: Keras."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-5
    """Factor d of the weight decay d x w."""
    decay: Literal["all", "not_norm", "weights"] = "all"
    """Parameters that decay. all: every one. not_norm: without normalisation. weights: without that and biases."""
    decay_in: Literal["optimizer", "loss"] = "optimizer"
    """optimizer: add d x w to the gradient. loss: add d/2 x sum of squares to the recorded loss; sgd: the same."""
    lars_eta: Annotated[float, Field(gt=0)] = 0.001
    """LARS: trust coefficient; local rate = eta |w| / (|g| + d |w| + epsilon)."""
    lars_epsilon: Annotated[float, Field(ge=0)] = 0.0
    """LARS: added to the denominator of the local rate."""


class ScheduleConfig(ConfigSection):
    """Learning rate schedule."""

    name: Literal["constant", "polynomial", "cosine", "steps"] = "constant"
    """Shape after the warm-up. steps: the rate is multiplied by decay_factor at each of decay_epochs."""
    by: Literal["step", "epoch"] = "step"
    """When the rate changes. step: at every step. epoch: at the start of each epoch."""
    warm_up_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Linear warm-up to the peak rate over this many epochs."""
    warm_up_by: Literal["steps", "images"] = "steps"
    """Length of a warm-up epoch when loader.last makes epochs of whole batches: those steps, or the images."""
    warm_up_from: Annotated[float, Field(ge=0, le=1)] | Literal["rank"] = 0.0
    """Share of the peak rate at the start of the warm-up. rank: 1 / number of ranks."""
    first_step: Literal[0, 1] = 0
    """Number of the first step in the formulas. 0: the warm-up's start. 1: one step further."""
    end_rate: Annotated[float, Field(ge=0)] = 0.0
    """Polynomial and cosine: learning rate at the end of stop.epochs."""
    power: Annotated[float, Field(gt=0)] = 2.0
    """Polynomial: exponent in end + (rate - end) x (1 - progress) ^ power."""
    warm_up_offset: bool = True
    """Polynomial and cosine: count progress from the warm-up's end. false: from step 0, with a jump in the rate."""
    decay_epochs: Epochs = ()
    """Steps: epochs at which the rate falls."""
    decay_factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Steps: factor of the rate at each of decay_epochs."""
    decay_late: bool = False
    """Steps: the step at a boundary still has the earlier rate, as in TensorFlow's piecewise_constant."""
    images: Annotated[int, Field(ge=1)] | None = None
    """Images per epoch, for the schedule only. Absent: the real number."""


class EvalConfig(ConfigSection):
    """When and how the model is evaluated on the validation images."""

    metric: Literal["top1", "top5", "map", "map50"] = "top1"
    """Metric of the target and the best checkpoint. top1, top5: share of images whose class is the first, or among the
    first five, predictions. map: COCO's mean average precision at IoU 0.5 to 0.95. map50: at IoU 0.5."""
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop training when the metric is at least this value."""
    every_epochs: Annotated[int, Field(ge=0)] = 1
    """Number of epochs between evaluations; the last epoch is evaluated too (at_end). 0: only the last."""
    offset: Annotated[int, Field(ge=0)] | None = None
    """Evaluate after epochs e = 0, 1, ... with e mod every_epochs = offset. Absent: every_epochs - 1."""
    at_epochs: Epochs = ()
    """Evaluate after these epochs instead of every_epochs."""
    async_: bool = False
    """Continue training while detections are scored; the metric is known one epoch later, and at the end."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Images per device and step of evaluation. auto: the training batch size, at least 32."""
    at_end: bool = True
    """Also evaluate after the last epoch. A run that ends early or has no evaluation due is evaluated in any case."""
    drop_last: bool = False
    """Skip validation images that do not fill a last batch of eval.batch_size."""

    @model_validator(mode="after")
    def check_offset(self) -> "EvalConfig":
        if self.offset is not None and self.offset >= max(1, self.every_epochs):
            raise ValueError(
                f"invalid eval.offset = {self.offset}: expected less than eval.every_epochs = {self.every_epochs}"
            )
        return self


class StopConfig(ConfigSection):
    """When training ends; the first limit reached counts."""

    epochs: Annotated[float, Field(gt=0)] = 90.0
    """Maximum number of epochs; also the length of the schedule."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Maximum number of steps (`train --iterations`). 0: no limit."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Maximum run time, evaluation and checkpoints included (`train --seconds`). 0: no limit."""


class CheckpointConfig(ConfigSection):
    """When checkpoints are written and how many are kept."""

    every_epochs: Annotated[float, Field(ge=0)] = 1.0
    """Number of epochs between checkpoints. 0: not by epochs."""
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Number of steps between checkpoints. 0: not by steps."""
    every_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Number of seconds between checkpoints. 0: not by time."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of latest checkpoints to keep."""
    best: bool = True
    """Also keep the checkpoint with the best metric: checkpoints/best.safetensors."""


class ParallelConfig(ConfigSection):
    """Data-parallel training: gradient all-reduce and sync batch norm."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Communication backend. auto: nccl when ranks have CUDA devices, else gloo."""
    bucket_bytes: Annotated[int, Field(ge=1024)] = 25 * 2**20
    """Bucket size of the gradient all-reduce in bytes."""
    static_graph: bool = False
    """DistributedDataParallel: every step runs the same graph, which saves some of its overhead."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Precision of the gradient all-reduce. none: as computed. fp16, bf16: 16 bits."""
    bn_ranks: Annotated[int, Field(ge=1)] = 1
    """Sync batch norm: number of neighbouring ranks that share batch statistics. 1: off."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a rank waits for the others after the rendezvous."""
    rendezvous_seconds: Annotated[float, Field(gt=0)] = 45.0
    """How long ranks wait for each other at the rendezvous."""
    interface: Annotated[str, Field(min_length=1)] | None = None
    """Network interface for traffic between hosts. Absent: the one that leads to rank 0's host."""


class TrackingConfig(ConfigSection):
    """Experiment trackers that also get the training curves (extra `tracking`)."""

    tensorboard: bool = False
    """Write TensorBoard events to tensorboard/ in the run folder."""
    mlflow: Annotated[str, Field(min_length=1)] | None = None
    """MLflow tracking URI, for example sqlite:///mlflow.db or http://localhost:5000."""


class EngineConfig(ConfigSection):
    """How a step is executed; it may change the speed, not the mathematics."""

    channels_last: bool = True
    """Use the NHWC memory layout."""
    compile: bool | Literal["auto"] = False
    """Use torch.compile; a CPU needs a C++ compiler. auto: in bench of 300 s or longer, if a trial shows a gain."""
    cuda_graphs: bool = False
    """CUDA: capture the step once as a graph and replay it."""
    cudnn_benchmark: bool = True
    """CUDA: let cuDNN benchmark its algorithms in the first steps."""
    deterministic: bool = False
    """Use only algorithms that give the same bits each time; slower on CUDA. A CPU always does so."""
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Number of CPU compute threads. auto: the physical cores this process may use."""
    keep_memory: bool = True
    """Make glibc keep freed memory; restarts the process once with GLIBC_TUNABLES set."""
    split_phases: bool = False
    """Time forward, backward and optimizer separately; a device without events synchronises between them."""
    nvtx: bool = False
    """CUDA: mark the phases with NVTX ranges for Nsight Systems."""


class MeasureConfig(ConfigSection):
    """How long to measure, and what else to record."""

    seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time budget of trials, peaks and steps together. Compiling comes on top."""
    reuse_trials: bool = True
    """Use the trials of precision and batch size in the cache folder, for equal machine, recipe and software."""
    half_width: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Stop earlier when the 95 % confidence interval is this narrow (half-width, relative)."""
    iterations: Annotated[int, Field(ge=1)] | None = None
    """Run exactly this many steps instead, whatever the time and the interval."""
    max_epochs: Annotated[int, Field(ge=1)] | None = None
    """Real images: stop after this many epochs at the latest. Absent: no limit."""
    telemetry_seconds: Annotated[float, Field(ge=0.05)] = 0.5
    """Time between two telemetry samples."""
    profiler_range: StepRange | None = None
    """CUDA, bench: [first step, number of steps] between cudaProfilerStart and cudaProfilerStop, for ncu and nsys."""

    @model_validator(mode="after")
    def check_range(self) -> "MeasureConfig":
        end = sum(self.profiler_range or ())
        if self.iterations is not None and end > self.iterations:
            raise ValueError(f"measure.profiler_range needs {end} steps; measure.iterations is {self.iterations}")
        return self


class OriginalConfig(ConfigSection):
    """Log files of the original benchmark, written to original/ in the run folder."""

    name: Literal["none", "mlperf", "mlperf_ssd", "tbd", "sc22", "wmlce"] = "none"
    """Format of the files. mlperf: RESULT line of MLPerf's MXNet ResNet-50. mlperf_ssd: RESULT and [Training] lines of
    its SSD. tbd: TimeHistory lines. sc22: iteration durations. wmlce: NVLOG lines."""
    every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Number of steps per line. auto: 100 for mlperf_ssd and tbd, 10 for wmlce. sc22 always has one line per step."""
    warm_up_steps: Annotated[int, Field(ge=0)] = 100
    """wmlce, bench: number of first steps that the average in its log skips."""


class MlperfConfig(ConfigSection):
    """Fields of mlperf.log that a training run cannot measure."""

    division: Literal["auto", "closed", "open"] = "auto"
    """MLPerf division. auto: closed when model, data, target and optimizer follow the rules, else open."""
    org: Annotated[str, Field(min_length=1)] = "unknown"
    """Name of the organisation that runs the benchmark."""
    platform: Annotated[str, Field(min_length=1)] | None = None
    """Name of the system it runs on. Absent: nodes x devices and the device's name."""
    status: Literal["onprem", "cloud", "preview", "research"] = "onprem"
    """Availability of the system: on premises, in the cloud, preview or research."""
    clear_caches: bool = False
    """Clear the page cache before the run starts. Needs root; the log says when it was not possible."""


SUPPORTED_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "classify": {
        "model.name": ("resnet",),
        "eval.metric": ("top1", "top5"),
        "augment.crop": ("area", "boxes", "centre", "whole"),
    },
    "detect": {
        "model.name": ("ssd",),
        "eval.metric": ("map", "map50"),
        "augment.crop": ("overlap", "whole"),  # the other crops do not transform boxes
        "augment.val_crop": ("whole",),
    },
}
"""Values that a workload supports."""
UNUSED_KEYS: dict[str, tuple[str, ...]] = {
    "classify": ("data.skip_empty", *(f"detect.{name}" for name in DetectConfig.model_fields)),
    "detect": (
        *("train.mixup", "train.label_smoothing", "model.stem", "model.zero_gamma"),
        *("model.conv_init", "model.fc_init", "model.pool_padding"),
    ),
}
"""Keys that a workload does not use."""


class Config(ConfigSection):
    """A resolved recipe."""

    name: str
    """Name of the recipe."""
    version: Annotated[int, Field(ge=1)]
    """Version of the recipe; raised by every change that can move a result."""
    summary: str
    """One line for `trainstone recipes`."""
    workload: Literal["classify", "detect"] = "classify"
    """Task to train. classify: image classification. detect: object detection."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed of initial weights, data and image order."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:1, mps, xpu ..."""
    system: str | None = None
    """Name of the system that this configuration is adapted to."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of hosts, from the system file."""
    devices_per_node: Annotated[int, Field(ge=1)] = 1
    """Number of devices per host, from the system file."""
    original_defects: bool = False
    """Reproduce known defects of the original: apply the keys that the recipe lists under [defects]."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Messages that every run of this recipe reports as findings."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    detect: DetectConfig = DetectConfig()
    loader: LoaderConfig = LoaderConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    eval: EvalConfig = EvalConfig()
    stop: StopConfig = StopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()
    tracking: TrackingConfig = TrackingConfig()
    original: OriginalConfig = OriginalConfig()
    mlperf: MlperfConfig = MlperfConfig()
    engine: EngineConfig = EngineConfig()
    measure: MeasureConfig = MeasureConfig()

    @model_validator(mode="after")
    def check_workload(self) -> "Config":
        """Refuse values that the workload does not support, and keys that it would ignore."""
        if self.original_defects and self.original.name == "none":
            raise ValueError(f"invalid original_defects = true: recipe {self.name} does not reproduce an original")
        for key, supported in SUPPORTED_VALUES[self.workload].items():
            if (value := attrgetter(key)(self)) not in supported:
                raise ValueError(
                    f"invalid {key} = {value} for workload = {self.workload}: expected {' or '.join(supported)}"
                )
        for key in UNUSED_KEYS[self.workload]:
            section, name = key.split(".")
            if attrgetter(key)(self) != type(getattr(self, section)).model_fields[name].default:
                raise ValueError(f"workload = {self.workload} does not use {key}: remove it")
        return self


class LaunchConfig(ConfigSection):
    """How a system starts many ranks; options of `trainstone launch` take precedence."""

    partition: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: partition."""
    account: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: account to charge."""
    time: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: time limit as sbatch takes it, for example 4:20:00."""
    gres: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: devices per node, for example gpu:4."""
    sbatch: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Slurm: further options, for example exclusive or mem=0."""
    prologue: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Shell lines to run first, for example module load cuda."""
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Environment variables of every rank. Their names are not quoted in scripts."""
    container: Annotated[str, Field(min_length=1)] | None = None
    """Apptainer image that ranks run in."""


class System(ConfigSection):
    """A machine or cluster: its hosts and devices, and the recipe keys that it changes."""

    name: str
    """Name of the system."""
    summary: str
    """One line about the machine."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of hosts."""
    devices_per_node: Annotated[int, Field(ge=1)] = 1
    """Number of devices per host."""
    launch: LaunchConfig = LaunchConfig()
    recipe: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """One table per recipe: the keys that change on this system."""


def change_section(config: Config, section: str, **changes: Any) -> Config:
    """Return the configuration with some values of a section changed; the new values are not checked."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
