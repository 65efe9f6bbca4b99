"""Summarise step times into the numbers of a result: steady window, throughput with its interval, phases."""

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainstone.results.knee import quote_setting
from trainstone.results.schema import run as schema
from trainstone.results.schema.sweep import BATCH, format_setting
from trainstone.results.steps import PHASE_COLUMNS
from trainstone.stats import steady_state
from trainstone.stats import throughput as stats
from trainstone.units import format_bytes, format_count, format_rate, format_seconds, format_spread

Series = NDArray[np.float64]
MAX_OUTLIERS_NAMED = 1000


@dataclass(frozen=True)
class StepSummary:
    throughput: schema.Throughput
    step_seconds: schema.StepSeconds
    phases: schema.Phases
    window: slice  # the steady steps
    data_share: float
    variation_percent: float  # robust spread of the steady steps: 1.4826 MAD / median

    @property
    def drifting(self) -> bool:
        return not self.throughput.steady and self.throughput.trend_percent is not None


def summarise_steps(columns: dict[str, Series], *, compiled: bool) -> StepSummary:
    seconds, images, waits = columns["step_seconds"], columns["images"], columns["data_seconds"]
    steady = steady_state.find_steady(seconds)
    window = slice(steady.from_step, len(seconds))
    inside = seconds[window]
    estimate = stats.estimate_within_run(inside, images[window])
    spread = stats.spread(inside)
    outliers = steady_state.find_outliers(inside)
    throughput = schema.Throughput(
        **asdict(estimate),
        steady=steady.steady,
        steady_from_step=steady.from_step,
        trend_percent=steady.trend_percent,
    )
    step_seconds = schema.StepSeconds(
        **spread,
        first=float(seconds[0]),
        num_outliers=len(outliers.steps),
        outlier_kind=outliers.kind,
        outlier_steps=[steady.from_step + step for step in outliers.steps[:MAX_OUTLIERS_NAMED]],
    )
    phases = schema.Phases(
        train_seconds=float(seconds.sum()),
        data_wait_seconds=float(waits.sum()),
        compile_seconds=max(0.0, float(seconds[0]) - spread["median"]) if compiled else None,
        **{name: float(columns[name].sum()) for name in PHASE_COLUMNS if name in columns},
    )
    return StepSummary(
        throughput,
        step_seconds,
        phases,
        window,
        data_share=float(waits[window].sum() / inside.sum()),
        variation_percent=148.26 * spread["mad"] / spread["median"],
    )


def find_limit(
    utilisation: schema.Utilisation, *, data_bound: bool, busy_percent: float | None, throttled: str | None
) -> str:
    """Return what limits the speed: data, throttling, the host, memory bandwidth or compute.

    Compute or memory is decided by the roofline of the model's operations on this device's measured peaks.
    """
    if data_bound:
        return "data"
    if throttled:
        return "throttling"
    if busy_percent is not None and busy_percent < 70:
        return "the host (the device is idle part of the time)"
    compute, memory = utilisation.roofline_compute_seconds, utilisation.roofline_memory_seconds
    if compute is None or memory is None:
        return "unknown"
    return "compute" if compute >= memory else "memory bandwidth"


def describe_setting(result: schema.Result) -> str:
    """Format one line: recipe, devices, precision, batch, data; a sweep's own keys are omitted, except batches."""
    swept = (result.sweep.key, result.sweep.curve_key) if result.sweep else ()
    train, engine = result.config.get("train", {}), result.config.get("engine", {})
    parts = [f"{result.recipe.name} v{result.recipe.version}"]
    names = Counter(device.name for device in result.devices)
    if names:
        number = engine.get("threads")
        on_cpu = result.devices[0].label == "cpu" and "engine.threads" not in swept and number != "auto"
        threads = f", {number} thread{'' if number == 1 else 's'}" if on_cpu else ""
        devices = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
        parts.append(f"{devices}{threads}")
    data = result.config.get("data", {})
    files = data.get("source") == "files" and isinstance(data.get("root"), str)
    values = {
        "{}": train.get("precision") if "train.precision" not in swept else None,
        "batch {}": (result.sweep and result.sweep.describe_batches())
        or (train.get("batch_size") if BATCH not in swept else None),
        "{} data": Path(data["root"]).name if files else str(data["source"]) if "source" in data else None,
    }
    return " · ".join(parts + [form.format(value) for form, value in values.items() if value not in (None, "auto")])


def format_repeat_command(result: schema.Result, path: Path) -> str:
    """Return the command that repeats the run, or resumes an unfinished one."""
    config = shlex.quote(str(path / "config.toml"))
    if result.kind == "train":
        unfinished = result.status in ("interrupted", "killed", "failed")
        runs = f" --runs {result.repeated.num_runs}" if result.repeated else ""
        resume = f"trainstone train --resume {shlex.quote(str(path))}"
        return resume if unfinished else f"trainstone train {config}{runs}"
    if result.kind in ("eval", "profile", "data"):
        return result.command
    if result.kind == "sweep":
        return _repeat_sweep(result, path)
    if result.comparison is not None:
        other = shlex.quote(str(path / "points" / "b" / "config.toml"))
        return f"trainstone bench {config} --against {other}"
    world, runs = result.world, f" --runs {len(result.points)}" if result.points else ""
    # Ranks on several nodes were started by a launcher that the result does not record.
    launch = f"launch local --ranks {world.ranks} -- " if world.ranks > 1 and world.nodes == 1 else ""
    return f"trainstone {launch}bench {config}{runs}"


def _repeat_sweep(result: schema.Result, path: Path) -> str:
    sweep = result.sweep
    if sweep is None:
        return result.command
    if result.status in ("interrupted", "killed"):
        return f"trainstone sweep --resume {shlex.quote(str(path))}"
    words = ["trainstone", "sweep", str(path / "config.toml")]
    if sweep.key == BATCH:
        words += ["--batch-sizes", ",".join(map(format_setting, sweep.values))]
    over, values = (sweep.key, sweep.values) if sweep.key != BATCH else (sweep.curve_key, sweep.curves)
    if over is not None:
        words += ["--over", f"{over}={','.join(map(quote_setting, values))}"]
    flags = {"--profile": sweep.profile, "--cores": sweep.cores, "--strict": sweep.strict}
    return shlex.join([*words, *(flag for flag, given in flags.items() if given)])


def describe_preflight(preflight: schema.Preflight) -> str:
    """Format e.g. 4 ranks on 2 hosts connected at n1:20123 over eth0; all-reduce of 16 MiB in 12 ms."""
    ranks = format_count(sum(len(host.ranks) for host in preflight.hosts), "rank")
    interfaces = ", ".join(dict.fromkeys(host.interface for host in preflight.hosts if host.interface))
    over = f" over {interfaces}" if interfaces else ""
    line = f"{ranks} on {format_count(len(preflight.hosts), 'host')} connected at {preflight.rendezvous}{over}"
    timed = preflight.all_reduce
    if timed is None:
        return line
    return f"{line}; all-reduce of {format_bytes(timed.bytes[-1])} in {format_seconds(timed.seconds[-1])}"


def describe_interval(throughput: schema.Throughput) -> str:
    """Format e.g. ± 1.1 % (95 %, within this run), or why the interval is missing."""
    if throughput.ci95 is None:
        return f"(interval {throughput.ci_covers})"
    spread = format_spread(throughput.images_per_second, throughput.ci95)
    return f"{spread} (95 %, {throughput.ci_covers})"


def describe_rate(images_per_second: float, ci95: tuple[float, float] | None) -> str:
    """Format e.g. 1,190 ± 1.2 %, or only the rate without an interval."""
    if ci95 is None:
        return format_rate(images_per_second)
    return f"{format_rate(images_per_second)} {format_spread(images_per_second, ci95)}"
