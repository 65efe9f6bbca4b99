"""From raw steps to the numbers of a result: steady window, throughput with its interval, phases, verdict.

Pure; every definition of a metric stands here or in results/stats.py, once.
"""

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainstone.machine.health import Noise
from trainstone.results import schema, stats
from trainstone.results.profiled import Timeline
from trainstone.results.steady import find_outliers, find_steady
from trainstone.results.sweep import BATCH, format_setting, write_setting
from trainstone.units import format_percent, format_rate

Series = NDArray[np.float64]
MAX_OUTLIERS_NAMED = 1000


@dataclass(frozen=True)
class StepSummary:
    """What the steps of a run say."""

    throughput: schema.Throughput
    step_seconds: schema.StepSeconds
    phases: schema.Phases
    window: slice
    """The steady steps."""
    data_share: float
    variation_percent: float
    """Robust spread of the steady steps: 1.4826 MAD / median."""

    @property
    def drifting(self) -> bool:
        """Whether the steps were judged not steady; without a trend they were only too few to judge."""
        return not self.throughput.steady and self.throughput.trend_percent is not None


def summarise_steps(columns: dict[str, Series], *, compiled: bool) -> StepSummary:
    """Summarise at least one step; columns are those of steps-rank0000.csv."""
    seconds, images = columns["step_seconds"], columns["images"]
    steady = find_steady(seconds)
    window = slice(steady.from_step, len(seconds))
    inside = seconds[window]
    estimate = stats.throughput_within(inside, images[window])
    spread = stats.spread(inside)
    outliers = find_outliers(inside)
    waits = columns["data_seconds"]
    throughput = schema.Throughput(
        images_per_second=estimate.images_per_second,
        ci95=estimate.ci95,
        ci_covers=estimate.ci_covers,
        steady=steady.steady,
        steady_from_step=steady.from_step,
        num_steps=estimate.num_steps,
        trend_percent=steady.trend_percent,
    )
    step_seconds = schema.StepSeconds(
        median=spread.median,
        p5=spread.p5,
        p95=spread.p95,
        p99=spread.p99,
        mad=spread.mad,
        first=float(seconds[0]),
        num_outliers=len(outliers.steps),
        outlier_kind=outliers.kind,
        outlier_steps=[steady.from_step + step for step in outliers.steps[:MAX_OUTLIERS_NAMED]],
    )
    phases = schema.Phases(
        train_seconds=float(seconds.sum()),
        data_wait_seconds=float(waits.sum()),
        compile_seconds=max(0.0, float(seconds[0]) - spread.median) if compiled else None,
        **{name: float(columns[name].sum()) for name in _split_phases(columns)},
    )
    return StepSummary(
        throughput,
        step_seconds,
        phases,
        window,
        data_share=float(waits[window].sum() / inside.sum()),
        variation_percent=148.26 * spread.mad / spread.median,
    )


def find_limit(
    utilisation: schema.Utilisation, *, data_bound: bool, busy_percent: float | None, throttled: str | None
) -> str:
    """Say in a word what holds the speed back: data, heat or power, the host, memory or compute.

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


def write_verdict(
    title: str,
    throughput: schema.Throughput,
    utilisation: schema.Utilisation | None,
    noise: Noise | None,
    *,
    device_kind: str,
    precision: str,
    feeding: str = "",
    ranks: int = 1,
) -> str:
    """One sentence that can be quoted; of several ranks the throughput is that of all, the utilisation the first's."""
    rate = f"{title}: {format_rate(throughput.images_per_second)} images/s"
    whose = f"this {device_kind}"
    if ranks > 1:
        rate, whose = f"{rate} on {ranks} ranks", f"the first {device_kind}"
    parts = [f"{rate} {describe_interval(throughput)}"]
    if utilisation is not None and utilisation.mfu is not None:
        parts.append(f"{format_percent(utilisation.mfu, 0)} of {whose}'s measured {precision} peak")
    if utilisation is not None and utilisation.limit not in (None, "unknown"):
        parts.append(f"limited by {utilisation.limit}")
    if not throughput.steady and throughput.trend_percent is not None:
        parts.append("not steady")
    if feeding:
        parts.append(feeding)
    if noise is not None:
        parts.append(f"noise grade {noise.grade}")
    return "; ".join(parts)


def write_profile_verdict(title: str, timeline: Timeline) -> str:
    """One sentence: where the time of a step goes."""
    runs = "operators run" if timeline.device == "cpu" else "a kernel runs"
    parts = [f"{title}: {runs} for {format_percent(timeline.compute_utilisation)} of the step"]
    roofline = timeline.roofline.told if timeline.roofline else []
    parts += [told[:1].lower() + told[1:] for told in roofline[:1] or timeline.told[1:2]]
    if timeline.overhead is not None:
        share, noise = timeline.overhead.share, timeline.overhead.noise
        cost = format_percent(share) if share > noise else f"less than the noise ({format_percent(noise)})"
        parts.append(f"profiling costs {cost}")
    return "; ".join(part.rstrip(".") for part in parts)


def describe_setting(result: schema.Result) -> str:
    """One line: recipe, devices, precision, batch, data; of a sweep without what is swept, batches apart."""
    swept = (result.sweep.key, result.sweep.curve_key) if result.sweep else ()
    train, engine = result.config.get("train", {}), result.config.get("engine", {})
    parts = [f"{result.recipe.name} v{result.recipe.version}"]
    names = Counter(device.name for device in result.devices)
    if names:
        number = engine.get("threads")
        on_cpu = result.devices[0].label == "cpu" and "engine.threads" not in swept and number != "auto"
        threads = f", {number} thread{'' if number == 1 else 's'}" if on_cpu else ""
        told = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
        parts.append(f"{told}{threads}")
    values = {
        "{}": train.get("precision") if "train.precision" not in swept else None,
        "batch {}": (result.sweep and result.sweep.tell_batches())
        or (train.get("batch_size") if BATCH not in swept else None),
        "{} data": _name_data(result.config.get("data", {})),
    }
    return " · ".join(parts + [form.format(value) for form, value in values.items() if value not in (None, "auto")])


def describe_repeat(result: schema.Result, path: Path) -> str:
    """Return the command that does the same again, from where this one was given."""
    config = shlex.quote(str(path / "config.toml"))
    if result.kind == "train":
        unfinished = result.status in ("interrupted", "killed", "failed")
        runs = f" --runs {result.repeated.num_runs}" if result.repeated else ""
        return (
            f"trainstone train --resume {shlex.quote(str(path))}" if unfinished else f"trainstone train {config}{runs}"
        )
    if result.kind in ("eval", "profile", "data"):
        return result.command
    if result.kind == "sweep":
        return _repeat_sweep(result, path)
    if result.comparison is not None:
        rival = shlex.quote(str(path / "points" / "b" / "config.toml"))
        return f"trainstone bench {config} --against {rival}"
    # Ranks on other nodes were started by something that the run does not know.
    launch = (
        f"launch local --ranks {result.world.ranks} -- " if result.world.ranks > 1 and result.world.nodes == 1 else ""
    )
    return f"trainstone {launch}bench {config}" + (f" --runs {len(result.points)}" if result.points else "")


def _repeat_sweep(result: schema.Result, path: Path) -> str:
    """Go on where something is left; else the same points anew."""
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
        words += ["--over", f"{over}={','.join(map(write_setting, values))}"]
    asked = {"--profile": sweep.profile, "--cores": sweep.cores, "--strict": sweep.strict}
    return shlex.join([*words, *(flag for flag, given in asked.items() if given)])


def describe_interval(throughput: schema.Throughput) -> str:
    """Return ± 1.1 % (95 %, within this run), or that there is none."""
    if throughput.ci95 is None:
        return f"(interval {throughput.ci_covers})"
    half_width = (throughput.ci95[1] - throughput.ci95[0]) / 2 / throughput.images_per_second
    return f"± {format_percent(half_width)} (95 %, {throughput.ci_covers})"


def describe_rate(images_per_second: float, ci95: tuple[float, float] | None) -> str:
    """Return 1,190 ± 1.2 %; without an interval the rate alone."""
    if ci95 is None:
        return format_rate(images_per_second)
    return f"{format_rate(images_per_second)} ± {format_percent((ci95[1] - ci95[0]) / 2 / images_per_second)}"


def _name_data(data: dict[str, object]) -> str | None:
    """The folder's name where pictures are real."""
    if data.get("source") == "files" and isinstance(data.get("root"), str):
        return Path(str(data["root"])).name
    return str(data["source"]) if "source" in data else None


def _split_phases(columns: dict[str, Series]) -> list[str]:
    names = ("forward_seconds", "backward_seconds", "optimizer_seconds")
    return [name for name in names if name in columns]
