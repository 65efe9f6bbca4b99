"""What a recipe, and a system file, may say: frozen records, unknown keys refused. The text under a key documents it.

A function elsewhere takes the section it needs, never the whole Config. Loading and `--set` are in config/load.py.
"""

from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Share = Annotated[float, Field(ge=0, le=1)]


def check_range(ends: tuple[float, float]) -> tuple[float, float]:
    if not 0 < ends[0] <= ends[1]:
        raise ValueError("a range is [low, high], 0 < low <= high")
    return ends


def check_order(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError("a range is [low, high], low <= high")
    return ends


def check_rising(epochs: tuple[float, ...]) -> tuple[float, ...]:
    if list(epochs) != sorted(set(epochs)) or any(epoch <= 0 for epoch in epochs):
        raise ValueError("epochs are positive and rise")
    return epochs


# TOML has lists only, which strict models would refuse; the numbers in them stay strict.
Range = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_range)]
_Share = Annotated[float, Field(le=1, strict=True)]
ShareRange = Annotated[tuple[_Share, _Share], Field(strict=False), AfterValidator(check_range)]
AnyRange = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_order)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1, strict=True)], ...], Field(strict=False)]
StepRange = Annotated[
    tuple[Annotated[int, Field(ge=0, strict=True)], Annotated[int, Field(ge=1, strict=True)]], Field(strict=False)
]
Epochs = Annotated[tuple[float, ...], Field(strict=False), AfterValidator(check_rising)]
Adapted = Annotated[tuple[Literal["batch_size", "precision"], ...], Field(strict=False)]


class ConfigSection(BaseModel):
    """Strict (no text where a number belongs), frozen, no unknown keys.

    A key that is a word of Python has a _ behind it here, and nowhere else: eval.async is EvalConfig.async_.
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
    """The network."""

    name: Literal["resnet", "ssd"] = "resnet"
    """Network family. ssd: boxes from a ResNet-18 or -34 without its last stage and some layers more."""
    depth: Literal[18, 34, 50, 101, 152] = 50
    """Number of layers; the v1.5 form (stride on the 3x3 convolution)."""
    num_classes: Annotated[int, Field(ge=1)] | Literal["auto"] = 1000
    """Outputs: 1000, or 1001 with a background class as the TensorFlow originals have. auto: the data set's classes.
    ssd: without the background, which it adds itself."""
    pretrained: Annotated[str, Field(min_length=1)] | None = None
    """Weights of a ResNet to begin with, as `trainstone weights convert` writes them; layers of other names or shapes
    than the network's are refused, those that it has not (ssd: the last stage, the classifier) are left out."""
    conv_init: Literal["normal_fan_in", "truncated_fan_in", "normal_fan_out", "truncated_fan_out"] = "normal_fan_out"
    """Initial convolution weights, standard deviation sqrt(2 / fan)."""
    fc_init: Literal["normal_001", "torch_default", "truncated_fan_out"] = "torch_default"
    """Initial weights of the last layer."""
    zero_gamma: bool = False
    """Start the last batch-norm scale of every residual block at 0."""
    pool_padding: Literal["symmetric", "same"] = "symmetric"
    """Padding of the first max-pool: 1 on each side, or TensorFlow's SAME."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """How it begins. imagenet: 7x7 with stride 2, max-pool. small: 3x3 with stride 2, for images of 32 to 64."""
    # 8 channels crash oneDNN in the backward pass of a strided 1x1 convolution, channels-last (torch 2.13).
    width: Annotated[int, Field(ge=16, le=1024, multiple_of=8)] = 64
    """Channels of the first stage; each later one has twice as many."""
    norm: Literal["batch", "group"] = "batch"
    """batch: over a rank's batch, or over parallel.bn_ranks. group: within each image (at most 32 groups)."""

    @model_validator(mode="after")
    def check_ssd(self) -> "ModelConfig":
        if self.name == "ssd" and self.depth not in (18, 34):
            raise ValueError(f"model.name = ssd stands on 18 or 34 layers, not {self.depth}")
        if self.name == "resnet" and self.num_classes == 1:
            raise ValueError("model.num_classes must be at least 2 to tell classes apart")
        return self


class DataConfig(ConfigSection):
    """What is fed."""

    source: Literal["synthetic", "files", "generated"] = "synthetic"
    """synthetic: uint8 images from a seeded generator, made before the clock starts, fed from host memory.
    files: real images, the data set at data.root. generated: drawn images, stored once under $TRAINSTONE_CACHE."""
    root: Annotated[str, Field(min_length=1)] | None = None
    """A data set: class folders, COCO, RecordIO, TFRecord, WebDataset. `--data DIR` sets this and data.source."""
    image_size: Annotated[int, Field(ge=32, le=4096)] = 224
    """Height and width in pixels."""
    num_synthetic_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    """Different batches, used in turn."""
    generated_train: Annotated[int, Field(ge=1, le=10**7)] = 4000
    """Generated: images to train on."""
    generated_val: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Generated: images to validate with."""
    generated_clutter: bool = True
    """Generated: other things around and over the object; without, it is large and alone. Boxes: without, an image has
    one to four things instead of up to eight, and none is small."""
    skip_empty: bool = False
    """Boxes: train on the images that have one alone. Records that were written with --skip-empty have no others."""

    @model_validator(mode="before")
    @classmethod
    def follow_root(cls, values: Any) -> Any:
        """Who says where files lie means them, unless a source is named."""
        if isinstance(values, dict) and values.get("root") is not None and "source" not in values:
            return {**values, "source": "files"}
        return values

    @model_validator(mode="after")
    def check_root(self) -> "DataConfig":
        if self.source == "files" and self.root is None:
            raise ValueError("data.source is files, but data.root does not say where they lie: give --data DIR")
        return self


class AugmentConfig(ConfigSection):
    """What is done to an image before it is trained on, or validated with."""

    crop: Literal["area", "boxes", "overlap", "centre", "whole"] = "area"
    """Training. area: random area and aspect (torchvision, DALI, MXNet). boxes: so that part of an object is in it, by
    TensorFlow's rule. overlap: SSD's, so that every box overlaps the crop by a drawn share (sides, overlaps). centre:
    as in validation. whole: all of it, aspect not kept."""
    area: ShareRange = (0.08, 1.0)
    """Share of the image's area that a random crop covers."""
    aspect: Range = (3 / 4, 4 / 3)
    """Width / height of a random crop, in pixels; crop overlap: in shares of the image's sides."""
    sides: ShareRange = (0.3, 1.0)
    """Crop overlap: share of the image's width, and of its height, that a crop covers."""
    overlaps: Shares = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    """Crop overlap: what the intersection over union of crop and every box must be at least; one of these is drawn, or
    that the image stays whole."""
    aspect_law: Literal["log", "uniform"] = "log"
    """How crop area draws the aspect: its logarithm evenly (torchvision), or itself. Crop boxes: always itself."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    """Crops tried until one lies inside the image (and, with boxes, holds enough of an object). Crop overlap: tried
    before another overlap is drawn."""
    min_object_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Crop boxes: share of an object's box that must be inside; the whole image is the object where no box is."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of mirroring left and right."""
    resize: Literal["bilinear", "antialias"] = "bilinear"
    """Training: bilinear between the four nearest pixels (TensorFlow, OpenCV), or of all pixels under each new one
    (Pillow, torchvision), which is slower."""
    saturation: Range = (1.0, 1.0)
    """Training: factor of the colours' strength."""
    hue_degrees: AnyRange = (0.0, 0.0)
    """Training: how far colours turn."""
    contrast: Range = (1.0, 1.0)
    """Training: factor of the distance from the middle grey."""
    brightness: Range = (1.0, 1.0)
    """Training: factor of all pixels, after the contrast."""
    val_crop: Literal["centre", "whole"] = "centre"
    """Validation. centre: the middle, after the shorter side is val_shorter. whole: all of it, aspect not kept."""
    val_shorter: Annotated[int, Field(ge=32, le=4096)] | Literal["auto"] = "auto"
    """Validation: shorter side in pixels, before the centre is cut out. auto: image_size x 256 / 224."""
    val_resize: Literal["bilinear", "antialias"] = "antialias"
    """Validation: as augment.resize."""
    normalise: Literal["standard", "standard_unit", "mean", "mean_255", "wmlce_dali"] = "standard"
    """On the device. standard: (x - 255 m) / (255 s); standard_unit: (x / 255 - m) / s; both with ImageNet's mean
    m = .485 .456 .406 and deviation s = .229 .224 .225. mean: x - c; mean_255: (x - c) / 255; both with
    c = 123.68 116.78 103.94. wmlce_dali: (x - (121, 115, 100)) / (70, 68, 71)."""


class LoaderConfig(ConfigSection):
    """How images come from files into batches: may change speed, not which images (decode and shrink: a little)."""

    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads that decode. auto: the physical cores this process may use."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] = 3
    """Batches made ahead; bounds the memory."""
    cache: Literal["off", "files", "pixels"] = "off"
    """Keep in memory, up to loader.cache_bytes: images as they are stored, or decoded."""
    cache_bytes: Annotated[int, Field(ge=0)] = 2**30
    """Limit of the cache; what comes later is read each time."""
    decode: Literal["fast", "exact"] = "fast"
    """Training JPEGs: quick or accurate inverse cosine transform (validation: always accurate)."""
    shrink: bool = True
    """Decode training JPEGs at 1/2, 1/4 or 1/8 where the crop stays larger than what is made of it."""
    on_bad: Literal["error", "skip"] = "error"
    """An image that cannot be decoded: stop, or take another in its place and count it (loader.skipped)."""
    last: Literal["carry", "drop", "fill", "fill_even"] = "carry"
    """Images that do not fill an epoch's last batch. carry: the next epoch fills it up. drop: they are left out.
    fill: images of the epoch's beginning fill it up (an epoch's steps are rounded up). fill_even: likewise, but what
    does not divide among the ranks is left out."""


class DetectConfig(ConfigSection):
    """Boxes: how a network learns them, and which of them it gives out."""

    match_overlap: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A default box learns an object where their intersection over union is above this; each object's best one always
    does."""
    negatives: Annotated[float, Field(gt=0, le=100)] = 3.0
    """Boxes without an object that count in the loss, for each with one: those with the highest loss."""
    min_score: Share = 0.0
    """Found boxes with at most this score are left out."""
    before_nms: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Boxes of an image, all classes together, that enter the search for duplicates: those with the best scores."""
    nms_overlap: Share = 0.5
    """Of two boxes of a class that overlap by more, the one with the lower score is a duplicate."""
    max_found: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Boxes of an image that are given out at most."""
    inclusive_edges: bool = False
    """Count a box from 10 to 20 as 11 pixels wide in evaluation, as the original SSD did. COCO: 10."""


class TrainConfig(ConfigSection):
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
    """Mix each image with another of its batch by a share drawn from Beta(mixup, mixup). 0: off."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Keep an average of the weights that moves by 1 - ema a step (faster in the first steps); evaluation and
    exported weights are the average's. 0: off."""


class OptimizerConfig(ConfigSection):
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


class ScheduleConfig(ConfigSection):
    """The learning rate over time."""

    name: Literal["constant", "polynomial", "cosine", "steps"] = "constant"
    """After the warm-up. steps: times decay_factor at each of decay_epochs."""
    by: Literal["step", "epoch"] = "step"
    """How often the rate changes: at every step, or when an epoch begins."""
    warm_up_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Rise evenly to the full rate over so many epochs."""
    warm_up_by: Literal["steps", "images"] = "steps"
    """What an epoch of warm-up is where loader.last makes epochs of whole steps: those steps, or its images."""
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
    images: Annotated[int, Field(ge=1)] | None = None
    """Images of an epoch, for the rate alone. Absent: what an epoch really has."""


class EvalConfig(ConfigSection):
    """When and how the validation images are judged."""

    metric: Literal["top1", "top5", "map", "map50"] = "top1"
    """What counts. top1, top5: share of images whose class is the first, or among the first five, of the network's
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
    """Leave out the images that do not fill a last batch of eval.batch_size."""

    @model_validator(mode="after")
    def check_offset(self) -> "EvalConfig":
        if self.offset is not None and self.offset >= max(1, self.every_epochs):
            raise ValueError(f"eval.offset = {self.offset} must be less than eval.every_epochs = {self.every_epochs}")
        return self


class StopConfig(ConfigSection):
    """When training ends, target or not; the first that is true counts."""

    epochs: Annotated[float, Field(gt=0)] = 90.0
    """Epochs; also the length of the schedule."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Steps (`train --iterations`). 0: no limit."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Time on the run's clock, evaluation and checkpoints included (`train --seconds`). 0: no limit."""


class CheckpointConfig(ConfigSection):
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


class ParallelConfig(ConfigSection):
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
    rendezvous_seconds: Annotated[float, Field(gt=0)] = 45.0
    """How long ranks wait at the start until all are there."""
    interface: Annotated[str, Field(min_length=1)] | None = None
    """Network interface of the traffic between hosts. Absent: the one that leads to the first rank's host."""


class TrackingConfig(ConfigSection):
    """Other places to write the curves to (extra `tracking`)."""

    tensorboard: bool = False
    """TensorBoard events in the run folder, below tensorboard/."""
    mlflow: Annotated[str, Field(min_length=1)] | None = None
    """MLflow: the tracking URI, for example sqlite:///mlflow.db or http://localhost:5000."""


class EngineConfig(ConfigSection):
    """How the step is executed: may change speed, not the mathematics."""

    channels_last: bool = True
    """NHWC memory layout."""
    compile: bool = False
    """torch.compile; needs a C++ compiler on a CPU. Its time is reported apart."""
    cuda_graphs: bool = False
    """CUDA: capture the step once and replay it."""
    cudnn_benchmark: bool = True
    """CUDA: let cuDNN try its algorithms in the first steps."""
    deterministic: bool = False
    """Only algorithms that give the same bits each time (a CPU does so anyway); slower on CUDA."""
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """CPU threads. auto: the physical cores this process may use."""
    keep_memory: bool = True
    """Tell glibc to keep freed memory (restarts the process once with GLIBC_TUNABLES set)."""
    split_phases: bool = False
    """Time forward, backward and optimiser apart; makes devices without events wait between them."""
    nvtx: bool = False
    """CUDA: name the phases for Nsight Systems."""


class MeasureConfig(ConfigSection):
    """When to stop and what to watch."""

    seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time budget of the measured steps."""
    half_width: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Stop earlier once the 95 % interval is this narrow (half-width, relative)."""
    iterations: Annotated[int, Field(ge=1)] | None = None
    """Run exactly so many steps instead, whatever the time and the interval."""
    max_epochs: Annotated[int, Field(ge=1)] | None = None
    """Real images: stop after so many epochs of them at the latest. Absent: they come again and again."""
    telemetry_seconds: Annotated[float, Field(ge=0.05)] = 0.5
    """Time between two telemetry samples."""
    profiler_range: StepRange | None = None
    """CUDA, bench: [first step, number of steps] between cudaProfilerStart and cudaProfilerStop, for ncu and nsys."""

    @model_validator(mode="after")
    def check_range(self) -> "MeasureConfig":
        end = sum(self.profiler_range or ())
        if self.iterations is not None and end > self.iterations:
            raise ValueError(f"measure.profiler_range needs {end} steps, but measure.iterations is {self.iterations}")
        return self


class OriginalConfig(ConfigSection):
    """The benchmark that a recipe brings back: what it wrote is written again, into original/ of the run folder."""

    name: Literal["none", "mlperf", "mlperf_ssd", "tbd", "sc22", "wmlce"] = "none"
    """Whose files: the RESULT line of MLPerf's MXNet ResNet-50, RESULT and [Training] lines of its SSD, TBD's
    TimeHistory, SC22's iteration durations, WMLCE's NVLOG."""
    every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Steps between two lines of mlperf_ssd and tbd (auto: 100) and wmlce (auto: 10); sc22 has one for each."""
    warm_up_steps: Annotated[int, Field(ge=0)] = 100
    """wmlce, bench: steps that the average of its log leaves out."""


class MlperfConfig(ConfigSection):
    """What mlperf.log of a training run says beside what it sees."""

    division: Literal["auto", "closed", "open"] = "auto"
    """auto: closed where model, data, target and optimiser are what the rules ask for, else open."""
    org: Annotated[str, Field(min_length=1)] = "unknown"
    """Who runs it."""
    platform: Annotated[str, Field(min_length=1)] | None = None
    """What it runs on. Absent: nodes x devices and the device's name."""
    status: Literal["onprem", "cloud", "preview", "research"] = "onprem"
    """Whose machine it is."""
    clear_caches: bool = False
    """Let the system forget the files it has read before the run starts; needs root, and says so where it cannot."""


NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "classify": {
        "model.name": ("resnet",),
        "eval.metric": ("top1", "top5"),
        "augment.crop": ("area", "boxes", "centre", "whole"),
    },
    "detect": {
        "model.name": ("ssd",),
        "eval.metric": ("map", "map50"),
        "augment.crop": ("overlap", "whole"),  # others do not keep its boxes
        "augment.val_crop": ("whole",),
    },
}
"""Values that a workload can do with."""
UNKNOWN: dict[str, tuple[str, ...]] = {
    "classify": ("data.skip_empty", *(f"detect.{name}" for name in DetectConfig.model_fields)),
    "detect": (
        *("train.mixup", "train.label_smoothing", "model.stem", "model.zero_gamma"),
        *("model.conv_init", "model.fc_init", "model.pool_padding"),
    ),
}
"""Keys that mean nothing to a workload."""


class Config(ConfigSection):
    """A recipe, resolved."""

    name: str
    """Name of the recipe."""
    version: Annotated[int, Field(ge=1)]
    """Raised by every change of the recipe that can move a number."""
    summary: str
    """One line for `trainstone recipes`."""
    workload: Literal["classify", "detect"] = "classify"
    """What is trained: to name what an image shows, or to find the things in it."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of weights, data and order."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, xpu ..."""
    system: str | None = None
    """The system this configuration was fitted to."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of hosts, from the system."""
    devices_per_node: Annotated[int, Field(ge=1)] = 1
    """Devices a host, from the system."""
    original_defects: bool = False
    """Do what the original did even where it was wrong: what the recipe lists under [defects]."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What every run of this recipe says in a finding."""
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
        """A network, crops and a metric belong to a workload; what it does not know must not seem to be done."""
        if self.original_defects and self.original.name == "none":
            raise ValueError(f"original_defects = true: recipe {self.name} brings no original back")
        for key, wanted in NEEDS[self.workload].items():
            if attrgetter(key)(self) not in wanted:
                raise ValueError(f"workload = {self.workload} needs {key} = {' or '.join(map(str, wanted))}")
        for key in UNKNOWN[self.workload]:
            section, name = key.split(".")
            if attrgetter(key)(self) != type(getattr(self, section)).model_fields[name].default:
                raise ValueError(f"workload = {self.workload} knows no {key}: leave it out")
        return self


class LaunchConfig(ConfigSection):
    """How a system starts many ranks; options of `trainstone launch` go before these."""

    partition: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: queue."""
    account: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: who pays."""
    time: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: time limit as sbatch takes it, for example 4:20:00."""
    gres: Annotated[str, Field(min_length=1)] | None = None
    """Slurm: devices of a node, for example gpu:4."""
    sbatch: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Slurm: further options, for example exclusive or mem=0."""
    prologue: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Shell lines before the work, for example module load cuda."""
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Variables that every rank gets. Their names are not quoted in scripts."""
    container: Annotated[str, Field(min_length=1)] | None = None
    """Apptainer image that ranks run in."""


class System(ConfigSection):
    """Where a recipe was meant to run: geometry, and what each recipe changes there."""

    name: str
    """Name of the system."""
    summary: str
    """One line about the machine."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of hosts."""
    devices_per_node: Annotated[int, Field(ge=1)] = 1
    """Devices a host."""
    launch: LaunchConfig = LaunchConfig()
    recipe: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """One table for each recipe: the keys it changes on this system."""


def change_section(config: Config, section: str, **changes: Any) -> Config:
    """Return the configuration with some values of a section changed, which are taken as they are."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
