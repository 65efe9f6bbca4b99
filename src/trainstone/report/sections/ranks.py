"""Where many ranks ran, and how fast messages go between their hosts."""

from trainstone.report.blocks import Block, Section, Table
from trainstone.report.view import RunView
from trainstone.results.links import tell_met
from trainstone.results.preflight import Host, Link
from trainstone.units import format_bytes, format_count, format_seconds

# The slowest of many.
MOST_LINKS = 50


def build(view: RunView) -> Section | None:
    """Hosts, and what was timed between them."""
    preflight = view.result.preflight
    if preflight is None:
        return None
    blocks: list[Block] = [tabulate_hosts(preflight.hosts)]
    if preflight.links:
        blocks.append(tabulate_links(preflight.links, preflight.links_left_out))
    return Section("ranks", "Ranks and links", blocks, f"{tell_met(preflight)}.")


def tabulate_hosts(hosts: list[Host]) -> Table:
    """One row a host."""
    rows = [
        [
            host.host,
            str(len(host.ranks)),
            "" if host.devices is None else str(host.devices),
            host.interface or "",
            host.address or "",
            "" if host.clock_skew_seconds is None else tell_skew(host),
            host.versions.get("torch", ""),
        ]
        for host in hosts
    ]
    columns = ["host", "ranks", "devices", "interface", "address", "clock ahead", "torch"]
    return Table(columns, rows, numeric=[False, True, True, False, False, True, False], sortable=True)


def tell_skew(host: Host) -> str:
    """Return +0.31 ms ± 0.12 ms."""
    skew, unsure = (host.clock_skew_seconds or 0.0) * 1e3, (host.clock_uncertainty_seconds or 0.0) * 1e3
    return f"{skew:+.2f} ms ± {unsure:.2f} ms"


def tabulate_links(links: list[Link], left_out: int) -> Table:
    """One row a pair of hosts, the slowest first, and all ranks together."""
    together = [link for link in links if not link.hosts]
    pairs = sorted((link for link in links if link.hosts), key=lambda link: link.bytes_per_second)
    sizes = sorted({size for link in links for size in link.bytes})
    rows = []
    for link in [*together, *pairs[:MOST_LINKS]]:
        timed = dict(zip(link.bytes, link.seconds, strict=False))
        cells = [format_seconds(timed[size]) if size in timed else "" for size in sizes]
        rows.append([" - ".join(link.hosts) or "all ranks", *cells, f"{format_bytes(link.bytes_per_second)}/s"])
    hidden = left_out + len(pairs[MOST_LINKS:])
    more = f"; {format_count(hidden, 'pair')} not shown" if hidden else ""
    columns = ["all-reduce between", *(format_bytes(size) for size in sizes), "largest"]
    numeric = [False, *[True] * (len(columns) - 1)]
    return Table(columns, rows, caption=f"Median time by size of the message{more}", numeric=numeric, sortable=True)
