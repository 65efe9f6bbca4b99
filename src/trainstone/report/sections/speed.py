"""Report sections on speed: headline, step time distribution, phases, limits, published results, loader, devices."""

import math
from typing import Any

import numpy as np

from trainstone.report import charts
from trainstone.report.blocks import Block, FactsBlock, Section, drop_empty
from trainstone.report.charts import BLUE, DASHED, GREY, ORANGE, TEAL, Rows, build_figure, mark, tooltips, x_axis
from trainstone.report.view import RunView
from trainstone.results.combine import list_repeated_facts
from trainstone.results.findings import describe_data_bound
from trainstone.results.interleaved import describe_gradient_sync
from trainstone.results.published import find_device_figures, find_figures
from trainstone.results.series import BIN_WIDTH
from trainstone.results.step_summary import describe_interval, describe_rate
from trainstone.results.tables import Table, build_filled_table
from trainstone.results.training import list_facts
from trainstone.units import format_count, format_decimal, format_interval, format_percent, format_rate, format_seconds

NUM_BARS = 40
CAVEAT = "Published with other software, precision and batch size: a rough reference, not a like-for-like comparison."
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
        rate, window = format_rate(throughput.images_per_second), "steady" if throughput.steady else "unsteady"
        how = f"mean of {len(view.children)} runs" if result.points else f"images / time of the {window} window"
        lead = f"{rate} images/s {describe_interval(throughput)}, {how}."
        tiles.append(("images/s", rate))
        if throughput.ci95:
            tiles.append((f"95 % interval, {throughput.ci_covers}", format_interval(throughput.ci95)))
    tiles += drop_empty(
        {
            "median step": format_seconds(result.step_seconds.median) if result.step_seconds else "",
            "model FLOPs utilisation (MFU)": format_percent(used.mfu) if used and used.mfu is not None else "",
            "limited by": used.limit if used and used.limit and used.limit != "unknown" else "",
            "energy per image": f"{result.energy.joules_per_image:.3g} J" if result.energy else "",
            "noise grade": result.noise.grade if result.noise else "",
        }
    )
    blocks: list[Block] = [FactsBlock(tiles, big=True)]
    children = [(child.label, child.result) for child in view.children if child.result is not None]
    rows = [
        build_rate_row(label, result.throughput.images_per_second, result.throughput.ci95)
        for label, result in [("all runs" if children else "this run", result), *children]
        if result.throughput is not None
    ]
    if any("low" in row for row in rows):
        chart = charts.dot_plot(rows, x_axis("images/s", zero=False, tickCount=8), step=30)
        blocks.append(build_figure("throughput", "Throughput and its 95 % interval", "", chart))
    return Section("numbers", title, blocks, lead)


def build_rate_row(label: str, rate: float, ci95: tuple[float, float] | None, colour: str = BLUE) -> dict[str, Any]:
    row = {"what": label, "x": rate, "shown": describe_rate(rate, ci95), "colour": colour}
    return row | ({"low": ci95[0], "high": ci95[1]} if ci95 else {})


def build_distribution(view: RunView) -> Section | None:
    """Draw a histogram of step times; the last bar counts all steps slower than 1.5 times p99.

    Each bar sums a whole number of the series' fine bins: with other widths neighbouring bars would alternate.
    """
    steps, found, throughput = view.steps, view.result.step_seconds, view.result.throughput
    if steps is None or found is None or not len(steps.bin_count):
        return None
    facts = [
        ("5th percentile (p5)", format_seconds(found.p5)),
        ("median", format_seconds(found.median)),
        ("95th percentile (p95)", format_seconds(found.p95)),
        ("99th percentile (p99)", format_seconds(found.p99)),
        ("first step of the run (not drawn)", format_seconds(found.first)),
        ("outliers", f"{found.num_outliers}, {found.outlier_kind}" if found.num_outliers else "none"),
    ]
    low = float(steps.bin_seconds[0])
    place = np.rint(np.log(steps.bin_seconds / low) / BIN_WIDTH).astype(np.int64)
    last = min(int(place[-1]), max(0, math.floor(math.log(1.5 * found.p99 / low) / BIN_WIDTH)))
    width = math.ceil((last + 1) / NUM_BARS)
    counts = np.bincount(np.minimum(place, last) // width, weights=steps.bin_count)
    unit, factor = charts.choose_unit(1.5 * found.p99)
    edges = [charts.round_digits(low * factor * math.exp(width * BIN_WIDTH * n)) for n in range(len(counts) + 1)]
    rows: Rows = [
        {"x": start, "to": end, "steps": int(count)}
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    beyond = "; the last bar counts all slower steps" if place[-1] > last else ""
    x = x_axis(f"step time ({unit}){beyond}", zero=False)
    x["bin"] = {"binned": True}
    y, tooltip = charts.y_axis("steps", "steps"), tooltips(x="from", to=f"to ({unit})", steps="steps")
    layers = [mark("bar", rows, {"color": BLUE, "binSpacing": 1}, x=x, x2="to:Q", y=y, tooltip=tooltip)]
    # Named vertical lines. The first name is left of its line, so that close ones do not overlap.
    named: Rows = [{"x": found.median * factor, "what": "median"}, {"x": found.p99 * factor, "what": "p99"}]
    inside = [row for row in named if edges[0] <= row["x"] <= edges[-1]]
    layers += [mark("rule", inside, {**DASHED, "color": ORANGE}, x="x:Q")] if inside else []
    for number, row in enumerate(inside):
        side: dict[str, Any] = {"align": "left", "dx": 3} if number else {"align": "right", "dx": -3}
        layers.append(mark("text", [row], {"dy": 8, "y": 0, "color": ORANGE, **side}, x="x:Q", text="what:N"))
    title, median = "Distribution of step times", format_seconds(found.median)
    summary = f"{int(counts.sum())} steps from {edges[0]:.3g} {unit}, median {median}."
    which = "steady steps" if throughput is None or throughput.steady else "measured steps (not steady)"
    drawn = build_figure("distribution", title, summary, layers, height=200)
    return Section("distribution", title, [drawn, FactsBlock(facts)], f"Half of the {which} took less than {median}.")


def build_phases(view: RunView) -> Section | None:
    """Draw phases that add up to the program's time, or to the steps' time where the program's is unknown."""
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
    # With split steps, the rest is the time between the marks; without, it is forward, backward and optimiser.
    parts["rest of the steps" if phases.forward_seconds else "training steps"] = max(0.0, rest)
    parts |= {"evaluation": phases.eval_seconds or 0.0, "checkpoints": phases.checkpoint_seconds or 0.0}
    if phases.program_seconds is not None:
        parts["setup, peak measurement, analysis"] = max(0.0, phases.program_seconds - sum(parts.values()))
    parts = {name: seconds for name, seconds in parts.items() if seconds > 0}
    if not parts:
        return None
    largest, total = max(parts, key=lambda name: parts[name]), sum(parts.values())
    share = format_percent(parts[largest] / total, 0)
    lead = f"Largest part: {largest}, {share} of {format_seconds(total)}."
    drawn = charts.stacked_bars("phases", "Where the time went", {"run": parts})
    return Section("phases", "Where the time went", [drawn], lead)


def build_limits(view: RunView) -> Section | None:
    used, steps = view.result.utilisation, view.result.step_seconds
    if used is None:
        return None
    blocks: list[Block] = []
    if steps and used.roofline_compute_seconds is not None and used.roofline_memory_seconds is not None:
        rows: Rows = [
            {"what": "arithmetic at peak", "x": used.roofline_compute_seconds, "colour": BLUE},
            {"what": "memory traffic at peak", "x": used.roofline_memory_seconds, "colour": TEAL},
            {"what": "median step", "x": steps.median, "colour": ORANGE},
        ]
        rows = [row | {"x": 1e3 * row["x"], "shown": format_seconds(row["x"])} for row in rows]
        chart = charts.bar_chart(rows, x_axis("time per step (ms)"), step=34, color=charts.OWN_COLOUR)
        blocks.append(build_figure("limits", "Step time and its lower bounds at the measured peaks", "", chart))
    peak, bandwidth = used.peak_flops, used.peak_bytes_per_second
    facts = drop_empty(
        {
            "model FLOPs utilisation (MFU)": "" if used.mfu is None else format_percent(used.mfu),
            "FLOPs per image": format_decimal(used.flops_per_image, "FLOP") if used.flops_per_image else "",
            "peak": f"{format_decimal(peak, 'FLOP/s')}, {used.peak_source}" if peak else "",
            "memory traffic per image": format_decimal(used.bytes_per_image, "B") if used.bytes_per_image else "",
            "bandwidth": f"{format_decimal(bandwidth, 'B/s')}, measured copy" if bandwidth else "",
        }
    )
    blocks += [FactsBlock(facts)] if facts else []
    lead = f"Limited by {used.limit}." if used.limit not in (None, "unknown") else ""
    return Section("limits", "Performance limits", blocks, lead) if blocks else None


def build_trials(view: RunView) -> Section | None:
    """Show the trials that chose precision, batch size and torch.compile."""
    trials = view.result.trials
    if trials is None:
        return None
    compiled = trials.compile.describe("eager") if trials.compile else ""
    facts = drop_empty({"precision": trials.describe_precisions(), "torch.compile": compiled, "taken": trials.taken})
    best = max((row.images_per_second for row in trials.batches), default=0.0)
    rows = [
        [str(row.batch_size), format_rate(row.images_per_second), format_percent(row.images_per_second / best, 0),
         format_seconds(row.step_seconds), "chosen" if row.batch_size == trials.chosen_batch_size else ""]
        for row in trials.batches
    ]  # fmt: skip
    columns = {"batch size": True, "images/s": True, "of the best": True, "fastest step": True, "": False}
    table = [build_filled_table(columns, rows)] if rows else []
    lead = "What chose the configuration: short trials of the same network, by their fastest step."
    return Section("trials", "Trials", [*table, FactsBlock(facts)], lead)


def build_published(view: RunView) -> Section | None:
    """Draw the best published speed of each device and this run; the table lists all published results with sources."""
    result = view.result
    published = sorted(find_figures(result), key=lambda one: one.per_device, reverse=True)
    if result.throughput is None or not published:
        return None
    rate = result.throughput.images_per_second / max(1, result.world.ranks)
    same, lead = find_device_figures(result), CAVEAT
    if same:
        best = max(same, key=lambda one: one.per_device)
        lead = f"{format_percent(rate / best.per_device, 0)} of the published {best.device} result. {CAVEAT}"
    fastest = {one.device: one for one in reversed(published)}  # the fastest of a device comes first
    rows = [build_rate_row(a.device, a.per_device, None, ORANGE if a in same else GREY) for a in fastest.values()]
    rows = sorted([*rows, build_rate_row("this run", rate, None)], key=lambda row: -row["x"])
    chart = charts.dot_plot(rows, x_axis("images/s per device", type="log", nice=True), step=18)
    cells = [[a.title, format_rate(a.per_device), format_percent(rate / a.per_device, 1), a.source] for a in published]
    columns = ["published", "images/s per device", "this run", "source"]
    table = Table(columns, cells, numeric=[False, True, True, False])
    title = "Best published training speed per device, and this run"
    drawn = build_figure("published", title, "", chart, table)
    return Section("published", "Comparison with published results", [drawn], lead)


def build_loader(view: RunView) -> Section | None:
    result, loader = view.result, view.result.loader
    if loader is None or result.throughput is None or loader.synthetic_images_per_second is None:
        return None
    phases, share = result.phases, 0.0
    if phases is not None and phases.train_seconds and phases.data_wait_seconds is not None:
        share = phases.data_wait_seconds / phases.train_seconds
    summary = describe_data_bound(loader, share)
    rows = [
        build_rate_row("training, synthetic batches", loader.synthetic_images_per_second, loader.synthetic_ci95),
        build_rate_row("loader only", loader.images_per_second, loader.ci95),
        build_rate_row("training, real images", result.throughput.images_per_second, result.throughput.ci95),
    ]
    x = x_axis("images/s", domain=charts.pad_domain([row["x"] for row in rows], 0.6), nice=False, tickCount=5)
    chart = charts.bar_chart(rows, x, step=34, limit=220, label="shown")
    blocks: list[Block] = [
        build_figure("loader", "Throughput with synthetic batches, of the loader only, with real images", "", chart)
    ]
    if stages := loader.stage_seconds_per_image:
        total = sum(stages.values()) or 1.0
        cells = [[name, format_seconds(spent), format_percent(spent / total, 0)] for name, spent in stages.items()]
        cells.append(["all", format_seconds(total), f"{format_rate(1 / total)} images/s per thread"])
        blocks.append(Table(["loader stage", "time per image", "share"], cells, numeric=[False, True, True]))
    how = f"{format_count(loader.threads, 'loader thread')}; {format_count(loader.images, 'image')}, {loader.storage}"
    skipped = f"; {format_count(loader.skipped_images, 'damaged image')} skipped" if loader.skipped else ""
    return Section("loader", "Data loading", blocks, f"{summary[:1].upper()}{summary[1:]}. {how}{skipped}.")


def build_devices(view: RunView) -> Section | None:
    """Draw each device's step time relative to the median device; devices more than 5 % slower are highlighted."""
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
        chart = charts.dot_plot(drawn, x_axis("step time relative to the median device (%)"), step=20, size=70)
        blocks.append(build_figure("devices", "Step time of each device relative to the median device", "", chart))
        ratio = max(medians.values()) / min(medians.values())
        lead += f" A step takes {ratio:.2f} times as long on the slowest device as on the fastest."
    if view.result.communication:
        lead += f" Gradient sync: {describe_gradient_sync(view.result.communication)}."
    extra = {key: title for key, title in TELEMETRY.items() if any(key in device.telemetry for device in devices)}
    rows = [
        [
            f"{device.host} {device.label}",
            device.name,
            "" if device.images_per_second is None else format_rate(device.images_per_second),
            "" if device.step_seconds_median is None else format_seconds(device.step_seconds_median),
            *(charts.format_cell(device.telemetry.get(key)) for key in extra),
        ]
        for device in devices
    ]
    columns = ["device", "name", "images/s", "median step", *extra.values()]
    numeric = [False, False, *[True] * (len(columns) - 2)]
    return Section("devices", "Devices", [*blocks, Table(columns, rows, numeric=numeric, sortable=True)], lead)
