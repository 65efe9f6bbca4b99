"""What the numbers of `data bench` mean: images/s per core, the cores that a training needs."""

import math

from trainstone.results.schema.data_bench import DataBenchResult, Demand, Stage, ThreadPoint
from trainstone.units import format_count, format_rate

# Stages as a sentence names them
WORK = {"read": "reading", "decode": "decoding", "crop-resize": "cropping and resizing", "batch": "making batches"}


def rate_per_core(images_per_second: float, threads: int, cpu_cores: float | None, cores: int) -> float:
    """Return images a second of one core kept busy; where CPU time is not known a thread counts as a core.

    At most all `cores` were busy: two hardware threads of a core use two CPU seconds a second, and are one core.
    """
    return images_per_second / min(cpu_cores or threads, cores)


def best_point(feeding: DataBenchResult) -> ThreadPoint:
    return max(feeding.points, key=lambda point: point.images_per_second)


def widest_point(feeding: DataBenchResult) -> ThreadPoint:
    """Return the one with most threads: the rate a core usually falls with them, so that any other promises more."""
    return max(feeding.points, key=lambda point: point.threads)


def cores_needed(feeding: DataBenchResult) -> float | None:
    if feeding.demand is None:
        return None
    return feeding.demand.images_per_second / widest_point(feeding).images_per_second_per_core


def largest_stage(feeding: DataBenchResult) -> Stage | None:
    return max(feeding.stages, key=lambda stage: stage.seconds_per_image, default=None)


def describe_demand(feeding: DataBenchResult, demand: Demand, workload: str = "training") -> str:
    """Return ResNet-50 on 8 x NVIDIA A100 takes 20,000 images/s, which take 34 cores; 2 here do not reach that."""
    own = demand.device == feeding.cpu  # the cores that load are those that train
    device = "this CPU" if own else demand.device
    where = f" on {demand.devices} x {device}" if device and demand.devices > 1 else f" on {device}" if device else ""
    needed = demand.images_per_second / widest_point(feeding).images_per_second_per_core
    reached = best_point(feeding).images_per_second >= demand.images_per_second
    share = f"{format_cores(needed)} cores; {feeding.cores:,} here{', which also train,' if own else ''}"
    enough = "reach" if reached else "do not reach"
    return f"{workload}{where} takes {format_rate(demand.images_per_second)} images/s, which take {share} {enough} that"


def describe_cores(feeding: DataBenchResult) -> str:
    widest = widest_point(feeding)
    per_core, threads = format_rate(widest.images_per_second_per_core), format_count(widest.threads, "thread")
    core = f"A core feeds {per_core} images/s with {threads}."
    if feeding.demand is None:
        return f"{core} A training that takes N images/s needs N / {per_core} cores to feed it."
    message = describe_demand(feeding, feeding.demand, f"Training ({feeding.demand.how})")
    return f"{core} {message}."


def describe_covers(feeding: DataBenchResult) -> list[str]:
    return list(dict.fromkeys(f"95 % interval {point.ci_covers}" for point in feeding.points))


def format_cores(cores: float) -> str:
    """Return 34 or 3.41, never less than are needed by more than a hundredth."""
    return f"{math.ceil(cores):,}" if cores >= 10 else f"{max(0.01, cores):.2f}"


def format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 99.95e-6 else f"{seconds * 1e6:.3g}"
