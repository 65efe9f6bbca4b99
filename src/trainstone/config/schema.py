"""What a recipe may say: frozen records, unknown keys refused. The text under a key is its documentation.

A function elsewhere takes the section it needs, never the whole Config. Loading and `--set` are in config/load.py,
systems in config/system.py.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainstone.config.learning import (
    CheckpointConfig,
    EvalConfig,
    OptimizerConfig,
    ParallelConfig,
    ScheduleConfig,
    StopConfig,
    TrackingConfig,
    TrainConfig,
)
from trainstone.config.section import Range, Section, ShareRange, StepRange


class ModelConfig(Section):
    """The network."""

    name: Literal["resnet"] = "resnet"
    """Network family."""
    depth: Literal[18, 34, 50, 101, 152] = 50
    """Number of layers; the v1.5 form (stride on the 3x3 convolution)."""
    num_classes: Annotated[int, Field(ge=2)] | Literal["auto"] = 1000
    """Outputs: 1000, or 1001 with a background class as the TensorFlow originals have. auto: the data set's classes."""
    conv_init: Literal["normal_fan_in", "truncated_fan_in", "normal_fan_out", "truncated_fan_out"] = "normal_fan_out"
    """Initial convolution weights, standard deviation sqrt(2 / fan)."""
    fc_init: Literal["normal_001", "torch_default", "truncated_fan_out"] = "torch_default"
    """Initial weights of the last layer."""
    zero_gamma: bool = False
    """Start the last batch-norm scale of every residual block at 0."""
    pool_padding: Literal["symmetric", "same"] = "symmetric"
    """Padding of the first max-pool: 1 on each side, or TensorFlow's SAME."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """How it begins. imagenet: 7x7 with stride 2, max-pool. small: 3x3 with stride 2, for pictures of 32 to 64."""
    # 8 channels crash oneDNN in the backward pass of a strided 1x1 convolution, channels-last (torch 2.13).
    width: Annotated[int, Field(ge=16, le=1024, multiple_of=8)] = 64
    """Channels of the first stage; each later one has twice as many."""
    norm: Literal["batch", "group"] = "batch"
    """batch: over a rank's batch, or over parallel.bn_ranks. group: within each picture (at most 32 groups)."""


class DataConfig(Section):
    """What is fed."""

    source: Literal["synthetic", "files", "generated"] = "synthetic"
    """synthetic: uint8 images from a seeded generator, made before the clock starts, fed from host memory.
    files: real pictures, the data set at data.root. generated: drawn pictures, stored once under $TRAINSTONE_CACHE."""
    root: Annotated[str, Field(min_length=1)] | None = None
    """A data set: class folders, COCO, RecordIO, TFRecord, WebDataset. `--data DIR` sets this and data.source."""
    image_size: Annotated[int, Field(ge=32, le=4096)] = 224
    """Height and width in pixels."""
    num_synthetic_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    """Different batches, used in turn."""
    generated_train: Annotated[int, Field(ge=1, le=10**7)] = 4000
    """Generated: pictures to train on."""
    generated_val: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Generated: pictures to validate with."""
    generated_clutter: bool = True
    """Generated: other things around and over the object; without, it is large and alone."""

    @model_validator(mode="before")
    @classmethod
    def follow_root(cls, values: Any) -> Any:
        """Who says where files lie means them, unless a source is named."""
        if isinstance(values, dict) and values.get("root") is not None and "source" not in values:
            return {**values, "source": "files"}
        return values

    @model_validator(mode="after")
    def check_root(self) -> "DataConfig":
        """Files must lie somewhere."""
        if self.source == "files" and self.root is None:
            raise ValueError("data.source is files, but data.root does not say where they lie: give --data DIR")
        return self


class AugmentConfig(Section):
    """What is done to a picture before it is trained on, or validated with."""

    crop: Literal["area", "boxes", "centre", "whole"] = "area"
    """Training. area: random area and aspect (torchvision, DALI, MXNet). boxes: so that part of an object is in it, by
    TensorFlow's rule. centre: as in validation. whole: all of it, aspect not kept."""
    area: ShareRange = (0.08, 1.0)
    """Share of the picture's area that a random crop covers."""
    aspect: Range = (3 / 4, 4 / 3)
    """Width / height of a random crop, in pixels."""
    aspect_law: Literal["log", "uniform"] = "log"
    """How crop area draws the aspect: its logarithm evenly (torchvision), or itself. Crop boxes: always itself."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    """Crops tried until one lies inside the picture (and, with boxes, holds enough of an object)."""
    min_object_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Crop boxes: share of an object's box that must be inside; the whole picture is the object where no box is."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of mirroring left and right."""
    resize: Literal["bilinear", "antialias"] = "bilinear"
    """Training: bilinear between the four nearest pixels (TensorFlow, OpenCV), or of all pixels under each new one
    (Pillow, torchvision), which is slower."""
    val_shorter: Annotated[int, Field(ge=32, le=4096)] | Literal["auto"] = "auto"
    """Validation: shorter side in pixels, before the centre is cut out. auto: image_size x 256 / 224."""
    val_resize: Literal["bilinear", "antialias"] = "antialias"
    """Validation: as augment.resize."""
    normalise: Literal["standard", "standard_unit", "mean", "mean_255", "wmlce_dali"] = "standard"
    """On the device. standard: (x - 255 m) / (255 s); standard_unit: (x / 255 - m) / s; both with ImageNet's mean
    m = .485 .456 .406 and deviation s = .229 .224 .225. mean: x - c; mean_255: (x - c) / 255; both with
    c = 123.68 116.78 103.94. wmlce_dali: (x - (121, 115, 100)) / (70, 68, 71)."""


class LoaderConfig(Section):
    """How pictures come from files into batches: may change speed, not which pictures (decode and shrink: a little)."""

    engine: Literal["threads", "dali"] = "threads"
    """threads: ours. dali: the same pictures and crops, decoded and resized by NVIDIA DALI (extra `dali`)."""
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads that decode. auto: the physical cores this process may use."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] = 3
    """Batches made ahead; bounds the memory."""
    cache: Literal["off", "files", "pixels"] = "off"
    """Keep in memory, up to loader.cache_bytes: pictures as they are stored, or decoded."""
    cache_bytes: Annotated[int, Field(ge=0)] = 2**30
    """Limit of the cache; what comes later is read each time."""
    decode: Literal["fast", "exact"] = "fast"
    """Training JPEGs: quick or accurate inverse cosine transform (validation: always accurate)."""
    shrink: bool = True
    """Decode training JPEGs at 1/2, 1/4 or 1/8 where the crop stays larger than what is made of it. Not with DALI."""
    on_bad: Literal["error", "skip"] = "error"
    """A picture that cannot be decoded: stop, or take another in its place and count it (loader.skipped)."""
    last: Literal["carry", "drop", "fill", "fill_even"] = "carry"
    """Pictures that do not fill an epoch's last batch. carry: the next epoch fills it up. drop: they are left out.
    fill: pictures of the epoch's beginning fill it up (an epoch's steps are rounded up). fill_even: likewise, but what
    does not divide among the ranks is left out."""


class EngineConfig(Section):
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


class MeasureConfig(Section):
    """When to stop and what to watch."""

    seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time budget of the measured steps."""
    half_width: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Stop earlier once the 95 % interval is this narrow (half-width, relative)."""
    iterations: Annotated[int, Field(ge=1)] | None = None
    """Run exactly so many steps instead, whatever the time and the interval."""
    max_epochs: Annotated[int, Field(ge=1)] | None = None
    """Real pictures: stop after so many epochs of them at the latest. Absent: they come again and again."""
    telemetry_seconds: Annotated[float, Field(ge=0.05)] = 0.5
    """Time between two telemetry samples."""
    profiler_range: StepRange | None = None
    """CUDA, bench: [first step, number of steps] between cudaProfilerStart and cudaProfilerStop, for ncu and nsys."""

    @model_validator(mode="after")
    def check_range(self) -> "MeasureConfig":
        """Steps to be profiled must be among those that are run."""
        if self.profiler_range is not None and self.iterations is not None:
            end = sum(self.profiler_range)
            if end > self.iterations:
                raise ValueError(
                    f"measure.profiler_range needs {end} steps, but measure.iterations is {self.iterations}"
                )
        return self


class OriginalConfig(Section):
    """The benchmark that a recipe brings back: what it wrote is written again, into original/ of the run folder."""

    name: Literal["none", "mlperf", "tbd", "sc22", "wmlce"] = "none"
    """Whose files: the RESULT line of MLPerf's MXNet ResNet-50, TBD's TimeHistory, SC22's iteration durations,
    WMLCE's NVLOG."""
    every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Steps between two lines of tbd (auto: 100) and wmlce (auto: 10); sc22 has one for each."""
    warm_up_steps: Annotated[int, Field(ge=0)] = 100
    """wmlce, bench: steps that the average of its log leaves out."""


class MlperfConfig(Section):
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


class Config(Section):
    """A recipe, resolved."""

    name: str
    """Name of the recipe."""
    version: Annotated[int, Field(ge=1)]
    """Raised by every change of the recipe that can move a number."""
    summary: str
    """One line for `trainstone recipes`."""
    workload: Literal["classify"] = "classify"
    """What is trained."""
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
    def check_original(self) -> "Config":
        """Defects are those of an original."""
        if self.original_defects and self.original.name == "none":
            raise ValueError(f"original_defects = true: recipe {self.name} brings no original back")
        return self


def change_section(config: Config, section: str, **changes: Any) -> Config:
    """Return the configuration with some values of a section changed, which are taken as they are."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
