"""result.json, the product: its records and the history of its format. Absent means not measured, never a guess.

The meaning of each key is in docs/results-format.md; how runs are written and read is in results/run_folder.py.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainstone.machine.noise import Noise
from trainstone.results.schema.data_bench import DataBenchResult
from trainstone.results.schema.quality import Quality, Repeated
from trainstone.results.schema.record import Count, Rate, Record, Seconds
from trainstone.results.schema.sweep import Sweep
from trainstone.results.schema.timeline import Timeline
from trainstone.stats.ratio import RatioOutcome

# History of the format; raised when a key changes its meaning or goes away (a new key alone does not raise it):
#   1  (trainstone 0.1.0, before its release) the first
#   2  (trainstone 0.1.0) keys renamed: pictures to images or samples, meeting to rendezvous, judgement to outcome,
#      told to sentences; recipe keys schedule.images and parallel.rendezvous_seconds
FORMAT = 2

SECTIONS = (
    *("model", "data", "augment", "loader", "train", "optimizer", "schedule", "eval", "stop", "checkpoint"),
    *("parallel", "tracking", "original", "mlperf", "engine", "measure"),
)
"""Tables of a configuration."""

Kind = Literal["bench", "train", "profile", "sweep", "scale", "eval", "data", "import"]
Status = Literal["running", "ok", "target_reached", "target_missed", "interrupted", "failed", "killed"]
FINISHED = ("ok", "target_reached", "target_missed")  # statuses of a run that came to its end
Severity = Literal["info", "warning", "error"]


class Recipe(Record):
    name: str
    version: int
    sha256: str


class Process(Record):
    """Who writes this run; tells a running one from a killed one."""

    host: str
    pid: int
    started_utc: str
    starts: Annotated[int, Field(ge=1, le=2**31)] = 1  # which start of the run this is: each --resume is one more
    launch: str | None = None  # name of the launch that started it


class WorldSize(Record):
    ranks: Annotated[int, Field(ge=1, le=2**31)] = 1
    nodes: Annotated[int, Field(ge=1, le=2**31)] = 1


class Host(Record):
    host: str
    ranks: list[Count]
    interface: str | None = None  # network interface that its traffic to other hosts takes
    address: str | None = None
    devices: Count | None = None  # devices that its first rank sees
    versions: dict[str, str] = {}


class AllReduce(Record):
    bytes: list[Count]
    seconds: list[Seconds]  # median of each size, on the slowest rank: latency first
    bytes_per_second: Rate  # of the largest message: its bytes / its time


class Preflight(Record):
    rendezvous: str  # address and port of rank 0
    backend: str
    seconds: Seconds  # how long it all took
    hosts: list[Host]
    all_reduce: AllReduce | None = None


class Device(Record):
    host: str
    name: str
    label: str
    rank: Count | None = None
    images_per_second: float | None = None
    step_seconds_median: float | None = None
    data_wait_seconds: float | None = None
    telemetry: dict[str, Any] = {}
    unsupported: list[str] = []


class Throughput(Record):
    """Images a second over the steady window, with its 95 % interval and what that covers."""

    images_per_second: Rate
    ci95: tuple[float, float] | None = None
    ci_covers: str
    steady: bool
    steady_from_step: Count
    num_steps: Count
    trend_percent: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval's width as a fraction of the estimate."""
        return None if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 2 / self.images_per_second


class StepSeconds(Record):
    """Distribution of the steady steps; `first` is the very first step with its compiling and tuning."""

    median: Seconds
    p5: Seconds
    p95: Seconds
    p99: Seconds
    mad: Seconds
    first: Seconds
    num_outliers: Count
    outlier_kind: str
    outlier_steps: list[Count] = []


class Phases(Record):
    train_seconds: float | None = None
    data_wait_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    eval_seconds: float | None = None
    checkpoint_seconds: float | None = None
    compile_seconds: float | None = None
    program_seconds: float | None = None


class Utilisation(Record):
    mfu: float | None = None
    flops_per_image: Count | None = None
    bytes_per_image: Count | None = None
    peak_flops: float | None = None
    peak_source: str | None = None
    peak_bytes_per_second: float | None = None
    roofline_compute_seconds: float | None = None
    roofline_memory_seconds: float | None = None
    limit: str | None = None


class Memory(Record):
    peak_device_bytes: Count | None = None
    peak_host_bytes: Count | None = None
    allocator: str | None = None
    page_faults_per_step: float | None = None


class Energy(Record):
    joules_per_image: float
    average_watts: float
    meter: str


class Communication(Record):
    gradient_bytes: Count  # that a rank gives into the exchange, compressed where it is
    bucket_bytes: Count  # gradients are sent when so many are there (parallel.bucket_bytes)
    exposed_seconds: float | None = None
    """How much longer a step is with the exchange than without; below 0 where noise is larger."""
    exposed_ci95: tuple[float, float] | None = None
    share: float | None = None  # of a step with it


class LoaderResult(Record):
    """How real images were fed, held against synthetic batches in the same run."""

    images_per_second: Rate  # of the loader alone, nobody training
    ci95: tuple[float, float] | None = None
    synthetic_images_per_second: Rate | None = None  # training on synthetic batches
    synthetic_ci95: tuple[float, float] | None = None
    share_of_synthetic: Rate | None = None
    """Median step on synthetic batches / median step on real images: 1 where real images cost nothing."""
    data_bound: bool = False  # waiting for data, or the loader's own work, costs more than a tenth
    threads: Count
    storage: str = ""
    images: Count  # in the training set
    digest: str = ""  # of some of its images: the same set has the same, wherever it lies
    skipped: Count = 0  # how often a damaged image was left out and another taken in its place
    skipped_images: Count = 0  # how many images that were
    stage_seconds_per_image: dict[str, float] = {}
    """Thread time of read, decode, crop-resize, batch, measured with the loader alone."""


class Side(Record):
    label: str  # machine or variant, as a reader would name it
    runs: list[str] = []  # run folders; empty for a published figure
    images_per_second: float
    """Of all devices, the geometric mean of several runs; where b is a published figure, of one device, in a and b."""
    source: str | None = None  # where a published figure stands


class ComparisonRow(Record):
    """One thing run on both sides: how many times as fast a is as b."""

    label: str
    a: Side
    b: Side
    ratio: float
    ci95: tuple[float, float] | None = None
    ci_covers: str  # "within each run", "between runs", "interleaved blocks", ... or "not established: <why>"
    p_value: float | None = None
    p_holm: float | None = None  # corrected for the number of rows (Holm 1979); the verdict goes by it
    noise_floor: float | None = None  # effects smaller than this share are not told from noise on this machine
    outcome: RatioOutcome
    differences: list[str] = []  # in what the two sides differ beside what is compared


class Comparison(Record):
    rows: list[ComparisonRow]
    geometric_mean: float | None = None  # of the ratios to runs, where there are several of them
    verdict: str
    left_out: list[str] = []  # what was given and not compared, and why


class Point(Record):
    label: str
    run: str


class Finding(Record):
    """A doubt about a number or the cause of one, with the next thing to do. Codes: docs/troubleshooting.md."""

    code: str
    severity: Severity
    message: str
    hint: str


class Result(Record):
    format: int = FORMAT
    kind: Kind
    source: str = "trainstone"
    run_id: str
    command: str
    status: Status
    verdict: str | None = None
    recipe: Recipe
    system: str | None = None
    process: Process
    world: WorldSize = WorldSize()
    preflight: Preflight | None = None
    throughput: Throughput | None = None
    step_seconds: StepSeconds | None = None
    utilisation: Utilisation | None = None
    noise: Noise | None = None
    phases: Phases | None = None
    memory: Memory | None = None
    energy: Energy | None = None
    communication: Communication | None = None
    loader: LoaderResult | None = None
    data_bench: DataBenchResult | None = None
    quality: Quality | None = None
    repeated: Repeated | None = None
    timeline: Timeline | None = None
    devices: list[Device] = []
    points: list[Point] = []
    sweep: Sweep | None = None
    comparison: Comparison | None = None
    findings: list[Finding] = []
    config: dict[str, Any] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    software: dict[str, Any] = Field(default_factory=dict)
    files: list[str] = []

    @field_validator("config")
    @classmethod
    def check_sections(cls, config: dict[str, Any]) -> dict[str, Any]:
        """What readers look into is a table, or absent."""
        for name in SECTIONS:
            if not isinstance(config.get(name, {}), dict):
                raise ValueError(f"{name} is not a table")
        return config
