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
from trainstone.config.pictures import AugmentConfig, DataConfig, LoaderConfig
from trainstone.config.section import Section, StepRange

Share = Annotated[float, Field(ge=0, le=1)]


class ModelConfig(Section):
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
    """How it begins. imagenet: 7x7 with stride 2, max-pool. small: 3x3 with stride 2, for pictures of 32 to 64."""
    # 8 channels crash oneDNN in the backward pass of a strided 1x1 convolution, channels-last (torch 2.13).
    width: Annotated[int, Field(ge=16, le=1024, multiple_of=8)] = 64
    """Channels of the first stage; each later one has twice as many."""
    norm: Literal["batch", "group"] = "batch"
    """batch: over a rank's batch, or over parallel.bn_ranks. group: within each picture (at most 32 groups)."""

    @model_validator(mode="after")
    def check_ssd(self) -> "ModelConfig":
        """A detector stands on a plain network."""
        if self.name == "ssd" and self.depth not in (18, 34):
            raise ValueError(f"model.name = ssd stands on 18 or 34 layers, not {self.depth}")
        if self.name == "resnet" and self.num_classes == 1:
            raise ValueError("model.num_classes must be at least 2 to tell classes apart")
        return self


class DetectConfig(Section):
    """Boxes: how a network learns them, and which of them it gives out."""

    match_overlap: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A default box learns an object where their intersection over union is above this; each object's best one always
    does."""
    negatives: Annotated[float, Field(gt=0, le=100)] = 3.0
    """Boxes without an object that count in the loss, for each with one: those with the highest loss."""
    min_score: Share = 0.0
    """Found boxes with at most this score are left out."""
    before_nms: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Boxes of a picture, all classes together, that enter the search for duplicates: those with the best scores."""
    nms_overlap: Share = 0.5
    """Of two boxes of a class that overlap by more, the one with the lower score is a duplicate."""
    max_found: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Boxes of a picture that are given out at most."""
    inclusive_edges: bool = False
    """Count a box from 10 to 20 as 11 pixels wide in evaluation, as the original SSD did. COCO: 10."""


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

    name: Literal["none", "mlperf", "mlperf_ssd", "tbd", "sc22", "wmlce"] = "none"
    """Whose files: the RESULT line of MLPerf's MXNet ResNet-50, RESULT and [Training] lines of its SSD, TBD's
    TimeHistory, SC22's iteration durations, WMLCE's NVLOG."""
    every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Steps between two lines of mlperf_ssd and tbd (auto: 100) and wmlce (auto: 10); sc22 has one for each."""
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


class Config(Section):
    """A recipe, resolved."""

    name: str
    """Name of the recipe."""
    version: Annotated[int, Field(ge=1)]
    """Raised by every change of the recipe that can move a number."""
    summary: str
    """One line for `trainstone recipes`."""
    workload: Literal["classify", "detect"] = "classify"
    """What is trained: to name what a picture shows, or to find the things in it."""
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
    def check_original(self) -> "Config":
        """Defects are those of an original."""
        if self.original_defects and self.original.name == "none":
            raise ValueError(f"original_defects = true: recipe {self.name} brings no original back")
        return self

    @model_validator(mode="after")
    def check_workload(self) -> "Config":
        """A network, crops and a metric belong to a workload; what it does not know must not seem to be done."""
        for key, wanted in NEEDS[self.workload].items():
            value = self._read(key)
            if value not in wanted:
                raise ValueError(f"workload = {self.workload} needs {key} = {' or '.join(map(str, wanted))}")
        for key in UNKNOWN[self.workload]:
            section, name = key.split(".")
            if self._read(key) != type(getattr(self, section)).model_fields[name].default:
                raise ValueError(f"workload = {self.workload} knows no {key}: leave it out")
        return self

    def _read(self, key: str) -> Any:
        section, name = key.split(".")
        return getattr(getattr(self, section), name)


def change_section(config: Config, section: str, **changes: Any) -> Config:
    """Return the configuration with some values of a section changed, which are taken as they are."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
