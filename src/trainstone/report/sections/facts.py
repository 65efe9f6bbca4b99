"""Report sections without charts: findings, memory, machine, ranks, child runs, reproduction, missing measurements."""

from collections.abc import Iterator
from typing import Any

from trainstone.config.load import flatten
from trainstone.report.blocks import Block, CodeBlock, FactsBlock, FindingsBlock, Links, Prose, Section, drop_empty
from trainstone.report.view import RunView
from trainstone.results.schema.run import FINISHED, Memory, Result
from trainstone.results.step_summary import describe_interval, describe_preflight, format_repeat_command
from trainstone.results.tables import Table
from trainstone.units import format_bytes, format_rate, format_seconds

CONTENTS = {
    "steps-rank": "every step",
    "telemetry-": "telemetry",
    "result.json": "all numbers, with the configuration and the machine",
    "config.toml": "the resolved recipe",
    "machine.json": "machine facts",
    "log.txt": "the program's log",
}
MAX_LINKS = 60
MAX_CONFIG_CHARS = 200_000
SEVERITIES = ("error", "warning", "info")


def build_findings(view: RunView) -> Section | None:
    rows = sorted(view.result.findings, key=lambda found: SEVERITIES.index(found.severity))
    block = FindingsBlock(rows) if rows else Prose("No issues found.")
    return Section("findings", "Findings", [block]) if rows or view.result.status in FINISHED else None


def build_memory(view: RunView) -> Section | None:
    memory, energy = view.result.memory or Memory(), view.result.energy
    device, host, faults = memory.peak_device_bytes, memory.peak_host_bytes, memory.page_faults_per_step
    facts = {
        "peak device memory": format_bytes(device) if device else "",
        "peak host memory": format_bytes(host) if host else "",
        "allocator": memory.allocator,
        "page faults per step": "" if faults is None else f"{faults:,.0f}",
    }
    if energy:
        facts |= {"energy per image": f"{energy.joules_per_image:.3g} J"}
        facts |= {"average power": f"{energy.average_watts:.3g} W", "meter": energy.meter}
    rows = drop_empty(facts)
    return Section("resources", "Memory and energy" if energy else "Memory", [FactsBlock(rows)]) if rows else None


def build_machine(view: RunView) -> Section | None:
    """List everything in machine.json: the machine and its software at the start of the run."""
    listed = [list_facts(facts) for facts in (view.result.machine, view.result.software)]
    blocks = [FactsBlock(rows) for rows in listed if rows]
    if not blocks:
        return None
    names = sorted({device.name for device in view.result.devices})
    lead = f"{', '.join(names)} on {view.result.process.host}." if names else ""
    if noise := view.result.noise:
        lead += f" Noise grade {noise.grade}: {'; '.join(noise.reasons) or 'quiet'}."
    return Section("machine", "Machine", blocks, lead.strip())


def list_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Flatten facts into rows: nested names and lists are joined, unknown values are skipped."""
    rows: list[tuple[str, str]] = []
    for name, value in flatten(facts):
        if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            rows += list_facts({f"{name} {number}": inner for number, inner in enumerate(value)})
        elif value is not None and value != []:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((name.replace("_", " "), text))
    return rows


def build_ranks(view: RunView) -> Section | None:
    preflight = view.result.preflight
    if preflight is None:
        return None
    hosts = []
    for host in preflight.hosts:
        devices, torch = "" if host.devices is None else str(host.devices), host.versions.get("torch", "")
        hosts.append([host.host, str(len(host.ranks)), devices, host.interface or "", host.address or "", torch])
    columns = ["host", "ranks", "devices", "interface", "address", "torch"]
    blocks = [Table(columns, hosts, numeric=[False, True, True, False, False, False], sortable=True)]
    if timed := preflight.all_reduce:
        rows = [
            [format_bytes(size), format_seconds(seconds), f"{format_bytes(size / seconds)}/s" if seconds else ""]
            for size, seconds in zip(timed.bytes, timed.seconds, strict=False)
        ]
        caption = "All-reduce over all ranks before the run: median time on the slowest rank"
        blocks.append(Table(["message", "time", "rate"], rows, caption=caption, numeric=[True, True, True]))
    return Section("ranks", "Ranks and hosts", blocks, f"{describe_preflight(preflight)}.")


def build_points(view: RunView) -> Section | None:
    if not view.children or view.result.sweep or view.result.repeated:  # these have sections of their own
        return None
    rows = []
    for child in view.children:
        if result := child.result:
            measured, noise = result.throughput, result.noise.grade if result.noise else ""
            speed = [format_rate(measured.images_per_second), describe_interval(measured)] if measured else ["", ""]
            rows.append([child.label, *speed, noise, result.status])
        else:
            rows.append([child.label, "", "", "", "cannot be read"])
    links = [child.link for child in view.children]
    columns = ["run", "images/s", "interval", "noise", "status"]
    table = Table(columns, rows, links=links, numeric=[False, True, False, False, False])
    return Section("points", "Runs", [table], f"{len(rows)} runs in points/.")


def build_repeat(view: RunView) -> Section | None:
    """List the run's identity, the command that repeats it and links to its files; points link their own files."""
    result = view.result
    facts = [
        ("run", result.run_id),
        ("recipe", f"{result.recipe.name} v{result.recipe.version}, {result.recipe.sha256[:12]}"),
        ("started", result.process.started_utc),
        ("status", result.status),
        ("command", result.command),
    ]
    try:
        config = (view.path / "config.toml").read_text(encoding="utf-8")[:MAX_CONFIG_CHARS]
    except (OSError, UnicodeDecodeError):
        config = ""
    names = [
        path.relative_to(view.path).as_posix()
        for folder in (view.path, view.path / "original", view.path / "trace", view.path / "launch")
        for path in sorted(folder.glob("*"))
        if path.is_file() and path.name != "report.html" and not path.name.endswith(".partial")
    ]
    links = [
        (view.url(name), next((what for start, what in CONTENTS.items() if name.startswith(start)), ""))
        for name in names[:MAX_LINKS]
    ]
    blocks: list[Block] = [FactsBlock(facts)]
    blocks += [CodeBlock("Repeat this run", format_repeat_command(result, view.path))] if config else []
    blocks += [Links(links)] if links else []
    blocks += [CodeBlock("Configuration", config, folded=True)] if config else []
    return Section("repeat", "Reproduce this run", blocks)


def build_unmeasured(view: RunView) -> Section | None:
    """List what was not measured and why."""
    rows = dict.fromkeys([*_list_missing(view.result), *(("unreadable", warning) for warning in view.warnings)])
    return Section("unmeasured", "Not measured", [FactsBlock(list(rows))]) if rows else None


def _list_missing(result: Result) -> Iterator[tuple[str, str]]:
    if result.comparison is not None:
        yield "steps", "see the two runs in points/"
        yield "utilisation, energy", "not measured while two models share the device; run one of them on its own"
        return
    if result.points:
        yield "steps, utilisation, memory, energy", "see each run in points/"
        return
    ended = "" if result.status in FINISHED else f"the run is {result.status}"
    if result.throughput is None:
        yield "throughput", ended or "no steps were recorded"
    elif result.throughput.ci95 is None:
        yield "interval", result.throughput.ci_covers
    if result.utilisation is None:
        yield "utilisation", ended or "not measured while two models share the device; run one of them on its own"
    for device in result.devices:
        for message in device.unsupported:
            what, _, why = message.partition(": ")
            yield what if why else "telemetry", why or message
    if result.energy is None:
        yield "energy", ended or "no energy counter (RAPL, NVML) could be read"
    if result.phases and result.phases.forward_seconds is None:
        yield "forward, backward, optimiser", "not split; add --set engine.split_phases=true (slightly slower)"
    again = "add --runs 5" if result.kind in ("bench", "train") else "repeat with --seed 1, 2, ..."
    yield "variation between runs", f"a single run cannot show the effect of seeds and memory layout; {again}"
