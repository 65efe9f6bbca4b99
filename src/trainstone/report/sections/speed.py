"""A run's speed: its numbers, the spread of its steps, where the time went, what limits it, devices side by side."""

import math
from typing import Any

import numpy as np

from trainstone.report.blocks import Block, Facts, Figure, Section
from trainstone.report.charts import (
    BLUE,
    DASHED,
    GREY,
    ORANGE,
    OWN_COLOUR,
    PALETTE,
    TEAL,
    Layers,
    Rows,
    across,
    bars,
    dots,
    figure,
    mark,
    round_sensibly,
    stacked,
    tips,
    up,
)
from trainstone.report.view import RunView
from trainstone.results.anchors import Anchor, anchors_for, matching_device
from trainstone.results.checks import tell_feeding
from trainstone.results.learning import list_facts
from trainstone.results.paired import tell_exchange
from trainstone.results.repeated import list_repeated_facts
from trainstone.results.schema import Device, Loader, Phases, Result, StepSeconds, Utilisation
from trainstone.results.series import BIN_WIDTH, StepSeries
from trainstone.results.summary import describe_interval, describe_rate
from trainstone.results.tables import Table
from trainstone.results.thinning import Array
from trainstone.units import (
    format_count,
    format_decimal,
    format_interval,
    format_percent,
    format_rate,
    format_seconds,
)

NUM_BARS = 40
FAR_APART = 10
"""Speeds further apart than this share no linear axis."""
CAVEAT = "Other software, precision and batch: a measure of what the device was once made to do, not a test."
TELEMETRY = {"clock_mhz": "clock (MHz)", "power_watts": "power (W)", "temp_celsius": "temperature (°C)"}


def build_headline(view: RunView) -> Section | None:
    """Tiles, and the interval drawn; of a training its quality first."""
    result = view.result
    if result.throughput is None and result.quality is None:
        return None
    trained = []
    if result.quality is not None:
        repeated, quality = result.repeated, result.quality
        trained = list_repeated_facts(repeated, quality) if repeated else list_facts(quality, result.status)
    drawn = draw_interval(view)
    blocks: list[Block] = [Facts([*trained, *_list_tiles(result)], big=True), *([drawn] if drawn else [])]
    title = "Quality and throughput" if trained else "Throughput"
    return Section("numbers", title, blocks, _describe_rate(view))


def _describe_rate(view: RunView) -> str:
    result = view.result
    if result.throughput is None:
        return ""
    rate = format_rate(result.throughput.images_per_second)
    if result.points:
        how = f"the mean of {len(view.children)} runs"
    elif result.throughput.steady:
        how = "images over time of the steady window"
    else:
        how = "images over time of a window that is not steady: a number of this run, not of the machine"
    return f"{rate} images/s {describe_interval(result.throughput)}, {how}."


def _list_tiles(result: Result) -> list[tuple[str, str]]:
    tiles = []
    throughput, used = result.throughput, result.utilisation
    if throughput:
        tiles.append(("images/s", format_rate(throughput.images_per_second)))
        if throughput.ci95:
            tiles.append((f"95 % interval, {throughput.ci_covers}", format_interval(throughput.ci95)))
    if result.step_seconds:
        tiles.append(("median step", format_seconds(result.step_seconds.median)))
    if used and used.mfu is not None:
        tiles.append(("of the measured peak (MFU)", format_percent(used.mfu)))
    if used and used.limit not in (None, "unknown"):
        tiles.append(("limited by", str(used.limit)))
    if result.energy:
        tiles.append(("energy an image", f"{result.energy.joules_per_image:.3g} J"))
    if result.noise:
        tiles.append(("noise grade", result.noise.grade))
    return tiles


def draw_interval(view: RunView) -> Figure | None:
    """Draw the interval, and for repeated runs each run's own beside it."""
    children = [(child.label, child.result) for child in view.children if child.result is not None]
    rows: Rows = []
    for label, result in [("all runs" if children else "this run", view.result), *children]:
        if result.throughput is not None:
            rows.append(rate_row(label, result.throughput.images_per_second, result.throughput.ci95))
    if not any("low" in row for row in rows):
        return None
    parts = "; ".join(f"{row['what']} {_show_digits(row)}" for row in rows[:12])
    chart = dots(rows, across("images/s", zero=False, tickCount=8), step=30, tooltip=tips(what="run", told="images/s"))
    return figure("throughput", "Throughput and its 95 % interval", f"Images per second: {parts}.", chart)


def rate_row(label: str, rate: float, ci95: tuple[float, float] | None, colour: str = BLUE) -> dict[str, Any]:
    """Return a speed as charts draw it."""
    row = {"what": label, "x": rate, "told": describe_rate(rate, ci95), "colour": colour}
    return row | ({"low": ci95[0], "high": ci95[1]} if ci95 else {})


def _show_digits(row: dict[str, Any]) -> str:
    """The rate with as many digits as its interval is worth."""
    if "low" not in row:
        return format_rate(row["x"])
    width = row["high"] - row["low"]
    digits = max(0, 1 - math.floor(math.log10(width))) if width > 0 else 3
    return f"{row['x']:.{digits}f} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"


def build_distribution(view: RunView) -> Section | None:
    """A histogram with median and tails."""
    steps, found = view.steps, view.result.step_seconds
    if steps is None or found is None or not len(steps.bin_count):
        return None
    rows = [
        ("fastest twentieth below (p5)", format_seconds(found.p5)),
        ("median", format_seconds(found.median)),
        ("slowest twentieth above (p95)", format_seconds(found.p95)),
        ("slowest hundredth above (p99)", format_seconds(found.p99)),
        ("first step of all, not in the picture", format_seconds(found.first)),
        ("outliers", f"{found.num_outliers}, {found.outlier_kind}" if found.num_outliers else "none"),
    ]
    throughput = view.result.throughput
    which = "steady steps" if throughput is None or throughput.steady else "steps of the window (not steady)"
    lead = f"Half of the {which} took less than {format_seconds(found.median)}."
    return Section("distribution", "Distribution of step times", [draw_histogram(steps, found), Facts(rows)], lead)


def draw_histogram(steps: StepSeries, found: StepSeconds) -> Figure:
    """Sum the fine bins into bars; what lies far above p99 is counted in the last one."""
    low, counts, width = sum_bars(steps, 1.5 * found.p99)
    edges = low * np.exp(width * np.arange(len(counts) + 1))
    factor, unit = (1e3, "ms") if edges[-1] < 1 else (1.0, "s")
    rows: Rows = [
        {"x": round_sensibly(a * factor), "to": round_sensibly(b * factor), "steps": int(count)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    x = across(f"step ({unit})", zero=False)
    x["bin"] = {"binned": True}
    layers = [
        mark("bar", rows, {"color": BLUE, "binSpacing": 1}, x=x, x2="to:Q", y=up("steps", "steps"),
             tooltip=tips("steps", x="from", to="to")),
        *mark_values({"median": found.median, "p99": found.p99}, float(edges[0]), float(edges[-1]), factor),
    ]  # fmt: skip
    slowest = float(steps.bin_seconds[-1]) * math.exp(BIN_WIDTH)
    told = f"Histogram of {int(steps.bin_count.sum())} steps from {format_seconds(low)} to {format_seconds(slowest)}"
    beyond = int(steps.bin_count[steps.bin_seconds >= edges[-1] * (1 - 1e-9)].sum())
    cells = [[f"{row['x']:g}", f"{row['to']:g}", str(row["steps"])] for row in rows if row["steps"]]
    if beyond:
        told += f"; the last bar holds {beyond} slower than {format_seconds(float(edges[-1]))}"
        cells[-1][1] = "and more"
    table = Table([f"from ({unit})", f"to ({unit})", "steps"], cells, numeric=[True] * 3)
    return figure("distribution", "Distribution of step times", f"{told}.", layers, table, height=200)


def sum_bars(steps: StepSeries, most: float) -> tuple[float, Array, float]:
    """Return the lower edge of the first bar, the bars' counts and their width in logarithms.

    A bar is a whole number of the series' fine bins: other widths would draw a comb.
    """
    low = float(steps.bin_seconds[0])
    place = np.rint(np.log(steps.bin_seconds / low) / BIN_WIDTH).astype(np.int64)
    last = min(int(place[-1]), max(0, math.floor(math.log(max(most, low) / low) / BIN_WIDTH)))
    merged = math.ceil((last + 1) / NUM_BARS)
    num_bars = last // merged + 1
    placed = np.minimum(place // merged, num_bars - 1)
    counts: Array = np.bincount(placed, weights=steps.bin_count, minlength=num_bars).astype(np.float64)
    return low, counts, merged * BIN_WIDTH


def mark_values(marks: dict[str, float], low: float, high: float, factor: float) -> Layers:
    """Dashed lines with their names, as far as they lie in the picture."""
    rows: Rows = [{"x": value * factor, "what": name} for name, value in marks.items() if low <= value <= high]
    layers = [mark("rule", rows, {**DASHED, "color": ORANGE}, x="x:Q")] if rows else []
    for number, row in enumerate(rows):  # the first name stands left of its line, so that close ones stay apart
        side: dict[str, Any] = {"align": "right", "dx": -3} if number == 0 else {"align": "left", "dx": 3}
        layers.append(mark("text", [row], {"dy": 8, "y": 0, "color": ORANGE, **side}, x="x:Q", text="what:N"))
    return layers


def build_phases(view: RunView) -> Section | None:
    """A bar of parts that sum up, and the same as a table."""
    phases = view.result.phases
    parts = split_phases(phases) if phases else {}
    if not parts:
        return None
    total = sum(parts.values())
    cells = [[name, format_seconds(seconds), format_percent(seconds / total)] for name, seconds in parts.items()]
    largest = max(parts, key=lambda name: parts[name])
    lead = f"Most of the {format_seconds(total)} went into: {largest} ({format_percent(parts[largest] / total, 0)})."
    table = Table(["part", "time", "share"], cells, numeric=[False, True, True])
    drawn = draw_parts("phases", "Where the time went", parts, "seconds", 1.0, columns=2)
    return Section("phases", "Where the time went", [drawn, table], lead)


def draw_parts(name: str, title: str, parts: dict[str, float], unit: str, factor: float, *, columns: int = 5) -> Figure:
    """One stacked bar of parts in seconds, drawn in another unit."""
    total = sum(parts.values())
    rows: Rows = [
        {"part": part, "x": round_sensibly(seconds * factor), "order": order, "told": format_seconds(seconds)}
        for order, (part, seconds) in enumerate(parts.items())
    ]
    kinds = {part: PALETTE[place % len(PALETTE)] for place, part in enumerate(parts)}
    chart = stacked(rows, unit, kinds, total * factor, tooltip=tips("part", told="took"), columns=columns)
    told = ", ".join(f"{part} {format_percent(seconds / total, 0)}" for part, seconds in parts.items())
    return figure(name, title, f"Of {format_seconds(total)}: {told}.", chart)


def split_phases(phases: Phases) -> dict[str, float]:
    """Return parts in seconds that sum up to the program's time where that was measured, else to that of the steps."""
    if phases.train_seconds is None:
        return {}
    inner = {
        "waiting for data": phases.data_wait_seconds,
        "forward": phases.forward_seconds,
        "backward": phases.backward_seconds,
        "optimiser": phases.optimizer_seconds,
        "compiling": phases.compile_seconds,
    }
    parts = {name: seconds for name, seconds in inner.items() if seconds}
    rest = phases.train_seconds - sum(parts.values())
    # The rest of split steps is what lies between the marks; of whole ones it is the work itself.
    parts["rest of the steps" if phases.forward_seconds else "training steps"] = max(0.0, rest)
    parts |= {"evaluation": phases.eval_seconds or 0.0, "checkpoints": phases.checkpoint_seconds or 0.0}
    if phases.program_seconds is not None:
        parts["set-up, peak measurement, judging"] = max(0.0, phases.program_seconds - sum(parts.values()))
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def build_limits(view: RunView) -> Section | None:
    """The step against its two bounds."""
    used, steps = view.result.utilisation, view.result.step_seconds
    if used is None:
        return None
    blocks: list[Block] = []
    if steps and used.roofline_compute_seconds is not None and used.roofline_memory_seconds is not None:
        bounds = {
            "arithmetic alone": (used.roofline_compute_seconds, BLUE),
            "memory traffic alone": (used.roofline_memory_seconds, TEAL),
            "median step": (steps.median, ORANGE),
        }
        rows: Rows = [
            {"what": name, "x": seconds * 1e3, "colour": colour, "told": format_seconds(seconds)}
            for name, (seconds, colour) in bounds.items()
        ]
        x = across("milliseconds a step")
        chart = bars(rows, x, step=34, color=OWN_COLOUR, tooltip=tips("what", told="a step"))
        told = "; ".join(f"{row['what']}: {row['told']}" for row in rows)
        blocks.append(figure("limits", "A step against its bounds at the measured peaks", f"{told}.", chart))
    facts = list_peaks(used)
    blocks += [Facts(facts)] if facts else []
    lead = f"Limited by {used.limit}." if used.limit not in (None, "unknown") else ""
    return Section("limits", "What limits it", blocks, lead) if blocks else None


def list_peaks(used: Utilisation) -> list[tuple[str, str]]:
    """Numbers behind it, with their source."""
    rows = []
    if used.mfu is not None:
        rows.append(("model FLOPs utilisation", format_percent(used.mfu)))
    if used.flops_per_image:
        rows.append(("work an image", format_decimal(used.flops_per_image, "FLOP")))
    if used.peak_flops:
        rows.append(("peak", f"{format_decimal(used.peak_flops, 'FLOP/s')}, {used.peak_source}"))
    if used.bytes_per_image:
        rows.append(("memory traffic an image", format_decimal(used.bytes_per_image, "B")))
    if used.peak_bytes_per_second:
        rows.append(("bandwidth", f"{format_decimal(used.peak_bytes_per_second, 'B/s')}, measured copy"))
    return rows


def build_published(view: RunView) -> Section | None:
    """Published figures beside this run, only where it is of a model that has some."""
    result = view.result
    anchors = sorted(anchors_for(result), key=lambda anchor: anchor.per_device, reverse=True)
    if result.throughput is None or not anchors:
        return None
    rate = result.throughput.images_per_second / max(1, result.world.ranks)
    same = matching_device(result)
    lead = CAVEAT
    if same:
        best = max(same, key=lambda anchor: anchor.per_device)
        lead = f"{format_percent(rate / best.per_device, 0)} of the published {best.device} figure. {CAVEAT}"
    return Section("published", "Against published figures", [draw_published(rate, anchors, same)], lead)


def draw_published(rate: float, anchors: list[Anchor], same: list[Anchor]) -> Figure:
    """The best figure of each device on a logarithmic axis, this run among them; the table has all, with sources."""
    best: dict[str, Anchor] = {}
    for anchor in anchors:  # fastest first
        best.setdefault(anchor.device, anchor)
    rows = [rate_row(a.device, a.per_device, None, ORANGE if a in same else GREY) for a in best.values()]
    rows = sorted([*rows, rate_row("this run", rate, None)], key=lambda row: -row["x"])
    x = across("images/s a device", type="log", nice=True)
    chart = dots(rows, x, step=18, tooltip=tips("what", told="images/s"))
    told = "; ".join(f"{row['what']} {row['told']}" for row in rows)
    cells = [
        [anchor.title, format_rate(anchor.per_device), format_percent(rate / anchor.per_device, 1), anchor.source]
        for anchor in anchors
    ]
    columns = ["published", "images/s a device", "this run", "source"]
    table = Table(columns, cells, numeric=[False, True, True, False])
    title = "Best published training speed of each device, and this run"
    return figure("published", title, f"Images per second and device: {told}.", chart, table)


def build_feeding(view: RunView) -> Section | None:
    """Synthetic batches, the loader alone and real pictures, and what a picture's time in the loader goes into."""
    result, loader = view.result, view.result.loader
    if loader is None or result.throughput is None or loader.synthetic_images_per_second is None:
        return None
    phases, share = result.phases, 0.0
    if phases is not None and phases.train_seconds and phases.data_wait_seconds is not None:
        share = phases.data_wait_seconds / phases.train_seconds
    told = tell_feeding(loader, share)
    rows = [
        rate_row("training, synthetic batches", loader.synthetic_images_per_second, loader.synthetic_ci95),
        rate_row("loader alone", loader.images_per_second, loader.ci95),
        rate_row("training, real pictures", result.throughput.images_per_second, result.throughput.ci95),
    ]
    blocks: list[Block] = [draw_speeds(rows)]
    if loader.stage_seconds_per_image:
        blocks.append(tabulate_stages(loader))
    pictures = f"{format_count(loader.pictures, 'picture')}, {loader.storage}"
    how = f"{format_count(loader.threads, 'loader thread')}; {pictures}"
    left_out = f"; {format_count(loader.skipped_pictures, 'damaged picture')} left out" if loader.skipped else ""
    return Section("feeding", "Is it fed fast enough?", blocks, f"{told[:1].upper()}{told[1:]}. {how}{left_out}.")


def draw_speeds(rows: Rows) -> Figure:
    """A dot a speed, with its interval; on a logarithmic axis where they are far apart."""
    rates = [row["x"] for row in rows]
    far = max(rates) > FAR_APART * min(rates)
    scale: dict[str, Any] = {"type": "log", "nice": True} if far else {"zero": True}
    x = across("images/s, logarithmic" if far else "images/s", tickCount=5, padding=40, **scale)
    chart = dots(rows, x, step=44, size=110, limit=220, label="told", tooltip=tips("what", told="images/s"))
    told = "; ".join(f"{row['what']} {row['told']}" for row in rows)
    return figure("feeding", "Synthetic batches, the loader alone, real pictures", f"Images per second: {told}.", chart)


def tabulate_stages(loader: Loader) -> Table:
    """What a thread's time a picture goes into."""
    stages = loader.stage_seconds_per_image
    total = sum(stages.values()) or 1.0
    rows = [[name, format_seconds(spent), format_percent(spent / total, 0)] for name, spent in stages.items()]
    rows.append(["all", format_seconds(total), f"{format_rate(1 / total)} images/s a thread"])
    return Table(["stage, loader alone", "a picture", "share"], rows, numeric=[False, True, True])


def build_devices(view: RunView) -> Section | None:
    """Each device's step time against the median device, where there are several."""
    devices = view.result.devices
    if len(devices) < 2:
        return None
    medians = [device.step_seconds_median for device in devices if device.step_seconds_median is not None]
    blocks = [draw_devices(devices, float(np.median(medians)))] if len(medians) > 1 else []
    lead = f"{len(devices)} devices on {format_count(len({device.host for device in devices}), 'host')}."
    if len(medians) > 1:
        lead += f" The slowest takes {max(medians) / min(medians):.2f} times as long a step as the fastest."
    if view.result.communication:
        lead += f" They exchange {tell_exchange(view.result.communication)}."
    return Section("devices", "Devices", [*blocks, tabulate_devices(devices)], lead)


def draw_devices(devices: list[Device], middle: float) -> Figure:
    """Points on one line each; more than 5 % slower than the median device is marked."""
    rows: Rows = []
    for device in devices:
        if device.step_seconds_median is not None:
            percent = 100 * (device.step_seconds_median / middle - 1)
            colour = ORANGE if device.step_seconds_median > 1.05 * middle else BLUE
            label = f"{device.host} {device.label}"
            rows.append({"what": label, "x": percent, "colour": colour, "told": f"{percent:+.1f} %"})
    x = across("step time against the median device (%)")
    chart = dots(rows, x, step=20, size=70, tooltip=tips(what="device", told="step time"))
    told = "; ".join(f"{row['what']} {row['told']}" for row in rows[:32])
    return figure("devices", "Devices against their median", f"Step time: {told}.", chart)


def tabulate_devices(devices: list[Device]) -> Table:
    """All that was measured of each."""
    extra = {key: title for key, title in TELEMETRY.items() if any(key in device.telemetry for device in devices)}
    rows = []
    for device in devices:
        measured = (device.telemetry.get(key) for key in extra)
        rows.append(
            [
                f"{device.host} {device.label}",
                device.name,
                "" if device.images_per_second is None else format_rate(device.images_per_second),
                "" if device.step_seconds_median is None else format_seconds(device.step_seconds_median),
                *(f"{value:.4g}" if isinstance(value, int | float) else "" for value in measured),
            ]
        )
    columns = ["device", "name", "images/s", "median step", *extra.values()]
    return Table(columns, rows, numeric=[False, False, *[True] * (len(columns) - 2)], sortable=True)
