"""The records of result.json and the history of its format. An absent key was not measured.

docs/reference/result-json.md is generated from these records; results/run_folder.py writes and reads the file.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainstone.machine.noise import Noise
from trainstone.results.finding_codes import Severity
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.quality import Quality, Repeated
from trainstone.results.schema.record import Count, Rate, Record, Seconds
from trainstone.results.schema.sweep import Sweep
from trainstone.results.schema.timeline import Timeline
from trainstone.results.schema.trials import Trials
from trainstone.stats.ratio import RatioOutcome

# History of the format, raised when a key changes its meaning or is removed; a new key does not raise it:
#   1  (trainstone 0.1.0, before its release) the first
#   2  (trainstone 0.1.0) keys in plain English: images, samples, rendezvous, outcome, sentences; recipe keys
#      schedule.images, parallel.rendezvous_seconds, eval.drop_last and others
FORMAT = 2

SECTIONS = (
    *("model", "data", "augment", "loader", "train", "optimizer", "schedule", "eval", "stop", "checkpoint"),
    *("parallel", "tracking", "original", "mlperf", "engine", "measure"),
)
"""Sections of a configuration."""

Kind = Literal["bench", "train", "profile", "sweep", "scale", "eval", "data", "import"]
Status = Literal["running", "ok", "target_reached", "target_missed", "interrupted", "failed", "killed"]
FINISHED = ("ok", "target_reached", "target_missed")  # statuses of a complete run


class Recipe(Record):
    name: str
    version: int
    sha256: str  # of the resolved sections that decide what is executed


class Process(Record):
    """The process that writes the run; a run whose process is gone reads as killed."""

    host: str
    pid: int
    started_utc: str  # ISO 8601
    starts: Annotated[int, Field(ge=1, le=2**31)] = 1  # number of starts: 1, plus 1 for each --resume
    launch: str | None = None  # id of the `trainstone launch` that started it


class WorldSize(Record):
    ranks: Annotated[int, Field(ge=1, le=2**31)] = 1
    nodes: Annotated[int, Field(ge=1, le=2**31)] = 1


class Host(Record):
    host: str
    ranks: list[Count]
    interface: str | None = None  # network interface for traffic to other hosts
    address: str | None = None
    devices: Count | None = None  # devices that the first rank on the host sees
    versions: dict[str, str] = {}


class AllReduce(Record):
    bytes: list[Count]  # message sizes
    seconds: list[Seconds]  # median for each size, on the slowest rank
    bytes_per_second: Rate  # of the largest message


class Preflight(Record):
    rendezvous: str  # address and port of rank 0
    backend: str  # gloo or nccl
    seconds: Seconds  # duration of the whole preflight
    hosts: list[Host]
    all_reduce: AllReduce | None = None


class Device(Record):
    host: str
    name: str  # as the vendor names it
    label: str  # cpu, cuda:0 ...
    uuid: str | None = None  # of an NVIDIA GPU (GPU-...) or MIG slice (MIG-...)
    rank: Count | None = None
    images_per_second: float | None = None  # of this device
    step_seconds_median: float | None = None
    data_wait_seconds: float | None = None
    telemetry: dict[str, Any] = {}  # medians over the steady window
    unsupported: list[str] = []  # telemetry that cannot be read here, and why


class Throughput(Record):
    """Images per second over the steady window, with a 95 % interval."""

    images_per_second: Rate  # of all devices
    ci95: tuple[float, float] | None = None  # 95 % confidence interval
    ci_covers: str  # "within this run", "between runs", or "not established: <why>"
    steady: bool
    steady_from_step: Count  # first step of the window
    num_steps: Count  # steps of the window
    trend_percent: float | None = None  # change of the step time over the window; absent: too few steps

    @property
    def half_width(self) -> float | None:
        """Half the interval's width as a fraction of the estimate."""
        return None if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 2 / self.images_per_second


class StepSeconds(Record):
    """Distribution of the durations of the steady steps."""

    median: Seconds
    p5: Seconds
    p95: Seconds
    p99: Seconds
    mad: Seconds  # median absolute deviation
    first: Seconds  # the first step of the run, with compilation and tuning
    num_outliers: Count
    outlier_kind: str  # periodic, clustered or isolated
    outlier_steps: list[Count] = []  # the first 1000


class Phases(Record):
    train_seconds: float | None = None  # all steps
    data_wait_seconds: float | None = None  # waiting for batches, part of train_seconds
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    eval_seconds: float | None = None
    checkpoint_seconds: float | None = None
    compile_seconds: float | None = None  # first step minus a median one, with engine.compile
    program_seconds: float | None = None  # the whole program


class Utilisation(Record):
    mfu: float | None = None  # model FLOPs utilisation: share of the measured peak
    flops_per_image: Count | None = None  # forward and backward
    bytes_per_image: Count | None = None  # each tensor read or written once
    peak_flops: float | None = None  # FLOP/s of this device
    peak_source: str | None = None  # how the peak was measured
    peak_bytes_per_second: float | None = None  # measured copy bandwidth
    roofline_compute_seconds: float | None = None  # of a step, at the peak FLOP/s
    roofline_memory_seconds: float | None = None  # of a step, at the peak bandwidth
    limit: str | None = None  # what limits the speed


class Memory(Record):
    peak_device_bytes: Count | None = None
    peak_host_bytes: Count | None = None
    allocator: str | None = None  # of host memory
    page_faults_per_step: float | None = None


class Energy(Record):
    joules_per_image: float
    average_watts: float
    meter: str  # NVML or RAPL


class Communication(Record):
    gradient_bytes: Count  # that a rank sends per step, after compression
    bucket_bytes: Count  # parallel.bucket_bytes
    exposed_seconds: float | None = None
    """How much longer a step is with the gradient all-reduce than without; below 0: noise is larger."""
    exposed_ci95: tuple[float, float] | None = None
    share: float | None = None  # exposed_seconds / step


class LoaderResult(Record):
    """The input pipeline, compared with synthetic batches in the same run."""

    images_per_second: Rate  # of the loader without training
    ci95: tuple[float, float] | None = None
    synthetic_images_per_second: Rate | None = None  # training on synthetic batches
    synthetic_ci95: tuple[float, float] | None = None
    share_of_synthetic: Rate | None = None
    """Median step on synthetic batches / median step on real images: 1 if real images cost nothing."""
    data_bound: bool = False  # real images cost more than a tenth of the speed
    threads: Count
    storage: str = ""
    images: Count  # in the training set
    digest: str = ""  # of some of its images; equal for equal data sets
    skipped: Count = 0  # how often a damaged image was replaced by another
    skipped_images: Count = 0  # number of damaged images
    stage_seconds_per_image: dict[str, float] = {}
    """Thread time for read, decode, crop-resize and batch, without training."""


class Side(Record):
    label: str  # machine or setting that differs
    runs: list[str] = []  # run folders; empty: a published figure
    images_per_second: float
    """All devices, geometric mean of several runs. If b is a published figure: per device, in a and b."""
    source: str | None = None  # of a published figure


class ComparisonRow(Record):
    """One recipe run on both sides: how many times as fast a is as b."""

    label: str
    a: Side
    b: Side
    ratio: float
    ci95: tuple[float, float] | None = None
    ci_covers: str  # "within each run", "between runs", "interleaved blocks", ... or "not established: <why>"
    p_value: float | None = None
    p_holm: float | None = None  # p_value corrected for the number of rows (Holm 1979); it decides the outcome
    noise_floor: float | None = None  # effects below this share cannot be distinguished from noise on this machine
    outcome: RatioOutcome
    differences: list[str] = []  # other differences between the sides


class Comparison(Record):
    rows: list[ComparisonRow]
    geometric_mean: float | None = None  # of the ratios to runs, if there are several
    verdict: str
    skipped: list[str] = []  # runs that were not compared, and why


class Point(Record):
    label: str
    run: str  # folder of the child run, relative to this one


class Finding(Record):
    """A warning about a number, or its cause, with what to do next. Codes: docs/reference/findings.md."""

    code: str
    severity: Severity
    message: str
    hint: str


class Result(Record):
    format: int = FORMAT  # version of this format
    kind: Kind
    source: str = "trainstone"  # the program that measured
    run_id: str  # name of the run folder
    command: str  # the command line
    status: Status
    verdict: str | None = None  # the result in one sentence
    recipe: Recipe  # what was run
    system: str | None = None  # name of the system file, if one was used
    process: Process  # the process that writes the run
    world: WorldSize = WorldSize()  # number of ranks and nodes
    preflight: Preflight | None = None  # connection of several ranks
    trials: Trials | None = None  # what chose an automatic precision, batch size and torch.compile
    throughput: Throughput | None = None
    step_seconds: StepSeconds | None = None
    utilisation: Utilisation | None = None  # speed relative to the measured peaks, and what limits it
    noise: Noise | None = None  # how quiet the machine was
    phases: Phases | None = None  # where the time went
    memory: Memory | None = None  # highest use of memory
    energy: Energy | None = None  # all devices; absent if a device has no counter of its own
    communication: Communication | None = None  # cost of the gradient all-reduce, in bench with several ranks
    loader: LoaderResult | None = None  # bench --data on one rank
    data_bench: DataBenchResult | None = None  # data bench
    quality: Quality | None = None  # train and eval
    repeated: Repeated | None = None  # train --runs
    timeline: Timeline | None = None  # profile
    devices: list[Device] = []  # one per rank
    points: list[Point] = []  # child runs of --runs, sweep and --against
    sweep: Sweep | None = None  # sweep
    comparison: Comparison | None = None  # bench --against, and compare --json
    findings: list[Finding] = []  # warnings and notes about the numbers
    config: dict[str, Any] = Field(default_factory=dict)  # the resolved configuration, as in config.toml
    machine: dict[str, Any] = Field(default_factory=dict)  # CPU, memory, devices, container, scheduler
    software: dict[str, Any] = Field(default_factory=dict)  # versions
    files: list[str] = []  # files of the run folder

    @field_validator("config")
    @classmethod
    def check_sections(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse a section that is not a table."""
        for name in SECTIONS:
            if not isinstance(config.get(name, {}), dict):
                raise ValueError(f"{name} is not a table")
        return config
