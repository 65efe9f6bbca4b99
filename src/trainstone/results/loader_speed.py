"""Interpret the numbers of `data bench`: images/s per core, and the cores that training needs."""

import math

from trainstone.results.schema.data_bench import DataBenchResult, Demand, Stage, ThreadPoint
from trainstone.units import format_count, format_rate

# Stage -> its name in a sentence
WORK = {"read": "reading", "decode": "decoding", "crop-resize": "cropping and resizing", "batch": "making batches"}


def rate_per_core(images_per_second: float, threads: int, cpu_cores: float | None, cores: int) -> float:
    """Return images/s per busy core; if CPU time is not known, a thread counts as a core.

    At most `cores` count as busy: two hardware threads of a core use two CPU seconds per second, but are one core.
    """
    return images_per_second / min(cpu_cores or threads, cores)


def find_best_point(bench: DataBenchResult) -> ThreadPoint:
    return max(bench.points, key=lambda point: point.images_per_second)


def find_widest_point(bench: DataBenchResult) -> ThreadPoint:
    """Return the point with the most threads, where the rate per core is usually lowest."""
    return max(bench.points, key=lambda point: point.threads)


def cores_needed(bench: DataBenchResult) -> float | None:
    if bench.demand is None:
        return None
    return bench.demand.images_per_second / find_widest_point(bench).images_per_second_per_core


def find_largest_stage(bench: DataBenchResult) -> Stage | None:
    return max(bench.stages, key=lambda stage: stage.seconds_per_image, default=None)


def describe_demand(bench: DataBenchResult, demand: Demand, workload: str = "training") -> str:
    """Format e.g. ResNet-50 on 8 x NVIDIA A100 needs 20,000 images/s, or 34 cores; the 2 cores here are too few."""
    shared = demand.device == bench.cpu  # the same cores load and train
    device = "this CPU" if shared else demand.device
    where = f" on {demand.devices} x {device}" if device and demand.devices > 1 else f" on {device}" if device else ""
    needed = demand.images_per_second / find_widest_point(bench).images_per_second_per_core
    reached = find_best_point(bench).images_per_second >= demand.images_per_second
    rate = f"{format_rate(demand.images_per_second)} images/s, or {format_cores(needed)} cores"
    here = f"the {format_count(bench.cores, 'core')} here{', which also train,' if shared else ''}"
    enough = "enough" if reached else "too few"
    return f"{workload}{where} needs {rate}; {here} {'is' if bench.cores == 1 else 'are'} {enough}"


def describe_cores(bench: DataBenchResult) -> str:
    widest = find_widest_point(bench)
    per_core, threads = format_rate(widest.images_per_second_per_core), format_count(widest.threads, "thread")
    core = f"One core loads {per_core} images/s with {threads}."
    if bench.demand is None:
        return f"{core} Training at N images/s needs N / {per_core} cores for loading."
    return f"{core} {describe_demand(bench, bench.demand, f'Training ({bench.demand.how})')}."


def describe_covers(bench: DataBenchResult) -> list[str]:
    return list(dict.fromkeys(f"95 % interval {point.ci_covers}" for point in bench.points))


def format_cores(cores: float) -> str:
    """Format 34 or 3.41, rounded up from 10 on."""
    return f"{math.ceil(cores):,}" if cores >= 10 else f"{max(0.01, cores):.2f}"


def format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 99.95e-6 else f"{seconds * 1e6:.3g}"
