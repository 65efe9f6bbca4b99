"""Where several ranks ran, and how long an all-reduce between them takes."""

from trainstone.report.blocks import Block, Section, Table
from trainstone.report.view import RunView
from trainstone.results.preflight import AllReduce, Host, describe_preflight
from trainstone.units import format_bytes, format_seconds


def build(view: RunView) -> Section | None:
    """Hosts, and the time of an all-reduce over all ranks."""
    preflight = view.result.preflight
    if preflight is None:
        return None
    blocks: list[Block] = [tabulate_hosts(preflight.hosts)]
    if preflight.all_reduce:
        blocks.append(tabulate_all_reduce(preflight.all_reduce))
    return Section("ranks", "Ranks and hosts", blocks, f"{describe_preflight(preflight)}.")


def tabulate_hosts(hosts: list[Host]) -> Table:
    """One row per host."""
    rows = [
        [
            host.host,
            str(len(host.ranks)),
            "" if host.devices is None else str(host.devices),
            host.interface or "",
            host.address or "",
            host.versions.get("torch", ""),
        ]
        for host in hosts
    ]
    columns = ["host", "ranks", "devices", "interface", "address", "torch"]
    return Table(columns, rows, numeric=[False, True, True, False, False, False], sortable=True)


def tabulate_all_reduce(timed: AllReduce) -> Table:
    """One row per size of the message."""
    rows = [
        [format_bytes(size), format_seconds(seconds), f"{format_bytes(size / seconds)}/s" if seconds else ""]
        for size, seconds in zip(timed.bytes, timed.seconds, strict=False)
    ]
    caption = "All-reduce over all ranks before the run: median time on the slowest rank"
    return Table(["message", "time", "rate"], rows, caption=caption, numeric=[True, True, True])
