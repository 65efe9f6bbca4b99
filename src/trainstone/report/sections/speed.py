"""A run's speed: its numbers, the spread of its steps, where the time went, what limits it, devices side by side."""

import math
from typing import Any

import numpy as np

from trainstone.report import charts
from trainstone.report.blocks import Block, FactsBlock, Section, keep_known
from trainstone.report.charts import BLUE, DASHED, GREY, ORANGE, TEAL, Rows, across, figure, mark, tips
from trainstone.report.view import RunView
from trainstone.results.combine import list_repeated_facts
from trainstone.results.compare_blocks import describe_gradient_sync
from trainstone.results.findings import describe_data_bound
from trainstone.results.published import anchors_for, matching_device
from trainstone.results.series import BIN_WIDTH
from trainstone.results.step_summary import describe_interval, describe_rate
from trainstone.results.tables import Table
from trainstone.results.training import list_facts
from trainstone.units import format_count, format_decimal, format_interval, format_percent, format_rate, format_seconds

NUM_BARS = 40
CAVEAT = "Other software, precision and batch: a measure of what the device was once made to do, not a test."
TELEMETRY = {"clock_mhz": "clock (MHz)", "power_watts": "power (W)", "temp_celsius": "temperature (°C)"}


def build_headline(view: RunView) -> Section | None:
    result, quality = view.result, view.result.quality
    throughput, used = result.throughput, result.utilisation
    if throughput is None and quality is None:
        return None
    tiles, lead, title = [], "", "Throughput"
    if quality is not None:
        title = "Quality and throughput"
        repeated = result.repeated
        tiles += list_repeated_facts(repeated, quality) if repeated else list_facts(quality, result.status)
    if throughput is not None:
        rate, window = format_rate(throughput.images_per_second), "the steady" if throughput.steady else "an unsteady"
        how = f"the mean of {len(view.children)} runs" if result.points else f"images over time of {window} window"
        lead = f"{rate} images/s {describe_interval(throughput)}, {how}."
        tiles.append(("images/s", rate))
        if throughput.ci95:
            tiles.append((f"95 % interval, {throughput.ci_covers}", format_interval(throughput.ci95)))
    tiles += keep_known(
        {
            "median step": format_seconds(result.step_seconds.median) if result.step_seconds else "",
            "of the measured peak (MFU)": format_percent(used.mfu) if used and used.mfu is not None else "",
            "limited by": used.limit if used and used.limit and used.limit != "unknown" else "",
            "energy an image": f"{result.energy.joules_per_image:.3g} J" if result.energy else "",
            "noise grade": result.noise.grade if result.noise else "",
        }
    )
    blocks: list[Block] = [FactsBlock(tiles, big=True)]
    children = [(child.label, child.result) for child in view.children if child.result is not None]
    rows = [
        rate_row(label, result.throughput.images_per_second, result.throughput.ci95)
        for label, result in [("all runs" if children else "this run", result), *children]
        if result.throughput is not None
    ]
    if any("low" in row for row in rows):
        chart = charts.dots(rows, across("images/s", zero=False, tickCount=8), step=30)
        blocks.append(figure("throughput", "Throughput and its 95 % interval", "", chart))
    return Section("numbers", title, blocks, lead)


def rate_row(label: str, rate: float, ci95: tuple[float, float] | None, colour: str = BLUE) -> dict[str, Any]:
    row = {"what": label, "x": rate, "shown": describe_rate(rate, ci95), "colour": colour}
    return row | ({"low": ci95[0], "high": ci95[1]} if ci95 else {})


def build_distribution(view: RunView) -> Section | None:
    """Sum the series' fine bins into bars; what is slower than 1.5 times p99 is counted in the last one.

    A bar is a whole number of fine bins: other widths would draw a comb.
    """
    steps, found, throughput = view.steps, view.result.step_seconds, view.result.throughput
    if steps is None or found is None or not len(steps.bin_count):
        return None
    facts = [
        ("fastest twentieth below (p5)", format_seconds(found.p5)),
        ("median", format_seconds(found.median)),
        ("slowest twentieth above (p95)", format_seconds(found.p95)),
        ("slowest hundredth above (p99)", format_seconds(found.p99)),
        ("first step of all, not in the image", format_seconds(found.first)),
        ("outliers", f"{found.num_outliers}, {found.outlier_kind}" if found.num_outliers else "none"),
    ]
    low = float(steps.bin_seconds[0])
    place = np.rint(np.log(steps.bin_seconds / low) / BIN_WIDTH).astype(np.int64)
    last = min(int(place[-1]), max(0, math.floor(math.log(1.5 * found.p99 / low) / BIN_WIDTH)))
    width = math.ceil((last + 1) / NUM_BARS)
    counts = np.bincount(np.minimum(place, last) // width, weights=steps.bin_count)
    unit, factor = charts.choose_unit(1.5 * found.p99)
    edges = [charts.round_sensibly(low * factor * math.exp(width * BIN_WIDTH * n)) for n in range(len(counts) + 1)]
    rows: Rows = [
        {"x": start, "to": end, "steps": int(count)}
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    beyond = "; the last bar holds all slower ones" if place[-1] > last else ""
    x = across(f"step ({unit}){beyond}", zero=False)
    x["bin"] = {"binned": True}
    y, tooltip = charts.up("steps", "steps"), tips(x="from", to=f"to ({unit})", steps="steps")
    layers = [mark("bar", rows, {"color": BLUE, "binSpacing": 1}, x=x, x2="to:Q", y=y, tooltip=tooltip)]
    # Lines down the chart with their names, the first left of its line: close ones stay apart
    named: Rows = [{"x": found.median * factor, "what": "median"}, {"x": found.p99 * factor, "what": "p99"}]
    inside = [row for row in named if edges[0] <= row["x"] <= edges[-1]]
    layers += [mark("rule", inside, {**DASHED, "color": ORANGE}, x="x:Q")] if inside else []
    for number, row in enumerate(inside):
        side: dict[str, Any] = {"align": "left", "dx": 3} if number else {"align": "right", "dx": -3}
        layers.append(mark("text", [row], {"dy": 8, "y": 0, "color": ORANGE, **side}, x="x:Q", text="what:N"))
    title, median = "Distribution of step times", format_seconds(found.median)
    message = f"{int(counts.sum())} steps from {edges[0]:.3g} {unit}, median {median}."
    which = "steady steps" if throughput is None or throughput.steady else "steps of the window (not steady)"
    drawn = figure("distribution", title, message, layers, height=200)
    return Section("distribution", title, [drawn, FactsBlock(facts)], f"Half of the {which} took less than {median}.")


def build_phases(view: RunView) -> Section | None:
    """Parts that sum up to the program's time where that was measured, else to that of the steps."""
    phases = view.result.phases
    if phases is None or phases.train_seconds is None:
        return None
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
    parts = {name: seconds for name, seconds in parts.items() if seconds > 0}
    if not parts:
        return None
    largest, total = max(parts, key=lambda name: parts[name]), sum(parts.values())
    lead = f"Most of the {format_seconds(total)} went into: {largest} ({format_percent(parts[largest] / total, 0)})."
    drawn = charts.stacked("phases", "Where the time went", {"run": parts})
    return Section("phases", "Where the time went", [drawn], lead)


def build_limits(view: RunView) -> Section | None:
    used, steps = view.result.utilisation, view.result.step_seconds
    if used is None:
        return None
    blocks: list[Block] = []
    if steps and used.roofline_compute_seconds is not None and used.roofline_memory_seconds is not None:
        rows: Rows = [
            {"what": "arithmetic alone", "x": used.roofline_compute_seconds, "colour": BLUE},
            {"what": "memory traffic alone", "x": used.roofline_memory_seconds, "colour": TEAL},
            {"what": "median step", "x": steps.median, "colour": ORANGE},
        ]
        rows = [row | {"x": 1e3 * row["x"], "shown": format_seconds(row["x"])} for row in rows]
        chart = charts.bars(rows, across("a step (ms)"), step=34, color=charts.OWN_COLOUR)
        blocks.append(figure("limits", "A step against its bounds at the measured peaks", "", chart))
    peak, bandwidth = used.peak_flops, used.peak_bytes_per_second
    facts = keep_known(
        {
            "model FLOPs utilisation": "" if used.mfu is None else format_percent(used.mfu),
            "work an image": format_decimal(used.flops_per_image, "FLOP") if used.flops_per_image else "",
            "peak": f"{format_decimal(peak, 'FLOP/s')}, {used.peak_source}" if peak else "",
            "memory traffic an image": format_decimal(used.bytes_per_image, "B") if used.bytes_per_image else "",
            "bandwidth": f"{format_decimal(bandwidth, 'B/s')}, measured copy" if bandwidth else "",
        }
    )
    blocks += [FactsBlock(facts)] if facts else []
    lead = f"Limited by {used.limit}." if used.limit not in (None, "unknown") else ""
    return Section("limits", "What limits it", blocks, lead) if blocks else None


def build_published(view: RunView) -> Section | None:
    """The best figure of each device on a logarithmic axis, this run among them; the table has all, with sources."""
    result = view.result
    anchors = sorted(anchors_for(result), key=lambda anchor: anchor.per_device, reverse=True)
    if result.throughput is None or not anchors:
        return None
    rate = result.throughput.images_per_second / max(1, result.world.ranks)
    same, lead = matching_device(result), CAVEAT
    if same:
        best = max(same, key=lambda anchor: anchor.per_device)
        lead = f"{format_percent(rate / best.per_device, 0)} of the published {best.device} figure. {CAVEAT}"
    fastest = {anchor.device: anchor for anchor in reversed(anchors)}  # the fastest of a device comes first
    rows = [rate_row(a.device, a.per_device, None, ORANGE if a in same else GREY) for a in fastest.values()]
    rows = sorted([*rows, rate_row("this run", rate, None)], key=lambda row: -row["x"])
    chart = charts.dots(rows, across("images/s a device", type="log", nice=True), step=18)
    cells = [[a.title, format_rate(a.per_device), format_percent(rate / a.per_device, 1), a.source] for a in anchors]
    columns = ["published", "images/s a device", "this run", "source"]
    table = Table(columns, cells, numeric=[False, True, True, False])
    title = "Best published training speed of each device, and this run"
    drawn = figure("published", title, "", chart, table)
    return Section("published", "Against published figures", [drawn], lead)


def build_loader(view: RunView) -> Section | None:
    result, loader = view.result, view.result.loader
    if loader is None or result.throughput is None or loader.synthetic_images_per_second is None:
        return None
    phases, share = result.phases, 0.0
    if phases is not None and phases.train_seconds and phases.data_wait_seconds is not None:
        share = phases.data_wait_seconds / phases.train_seconds
    message = describe_data_bound(loader, share)
    rows = [
        rate_row("training, synthetic batches", loader.synthetic_images_per_second, loader.synthetic_ci95),
        rate_row("loader alone", loader.images_per_second, loader.ci95),
        rate_row("training, real images", result.throughput.images_per_second, result.throughput.ci95),
    ]
    x = across("images/s", domain=charts.leave_room([row["x"] for row in rows], 0.6), nice=False, tickCount=5)
    chart = charts.bars(rows, x, step=34, limit=220, label="shown")
    blocks: list[Block] = [figure("feeding", "Synthetic batches, the loader alone, real images", "", chart)]
    if stages := loader.stage_seconds_per_image:
        total = sum(stages.values()) or 1.0
        cells = [[name, format_seconds(spent), format_percent(spent / total, 0)] for name, spent in stages.items()]
        cells.append(["all", format_seconds(total), f"{format_rate(1 / total)} images/s a thread"])
        blocks.append(Table(["stage, loader alone", "an image", "share"], cells, numeric=[False, True, True]))
    how = f"{format_count(loader.threads, 'loader thread')}; {format_count(loader.images, 'image')}, {loader.storage}"
    left_out = f"; {format_count(loader.skipped_images, 'damaged image')} left out" if loader.skipped else ""
    return Section("feeding", "Is it fed fast enough?", blocks, f"{message[:1].upper()}{message[1:]}. {how}{left_out}.")


def build_devices(view: RunView) -> Section | None:
    """Points on one line each; more than 5 % slower than the median device is marked."""
    devices = view.result.devices
    if len(devices) < 2:
        return None
    medians = {f"{each.host} {each.label}": each.step_seconds_median for each in devices if each.step_seconds_median}
    lead = f"{len(devices)} devices on {format_count(len({device.host for device in devices}), 'host')}."
    blocks: list[Block] = []
    if len(medians) > 1:
        middle, drawn = float(np.median(list(medians.values()))), list[dict[str, Any]]()
        for name, seconds in medians.items():
            percent = 100 * (seconds / middle - 1)
            colour = ORANGE if percent > 5 else BLUE
            drawn.append({"what": name, "x": percent, "colour": colour, "shown": f"{percent:+.1f} %"})
        chart = charts.dots(drawn, across("step time against the median device (%)"), step=20, size=70)
        blocks.append(figure("devices", "Devices against their median", "", chart))
        ratio = max(medians.values()) / min(medians.values())
        lead += f" The slowest takes {ratio:.2f} times as long a step as the fastest."
    if view.result.communication:
        lead += f" They exchange {describe_gradient_sync(view.result.communication)}."
    extra = {key: title for key, title in TELEMETRY.items() if any(key in device.telemetry for device in devices)}
    rows = [
        [
            f"{device.host} {device.label}",
            device.name,
            "" if device.images_per_second is None else format_rate(device.images_per_second),
            "" if device.step_seconds_median is None else format_seconds(device.step_seconds_median),
            *(charts.show(device.telemetry.get(key)) for key in extra),
        ]
        for device in devices
    ]
    columns = ["device", "name", "images/s", "median step", *extra.values()]
    numeric = [False, False, *[True] * (len(columns) - 2)]
    return Section("devices", "Devices", [*blocks, Table(columns, rows, numeric=numeric, sortable=True)], lead)
