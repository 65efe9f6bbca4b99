"""What a run with several ranks records before the work: hosts, and the time of one all-reduce."""

from trainstone.results.record import Count, Rate, Record, Seconds
from trainstone.units import format_bytes, format_count, format_seconds


class Host(Record):
    """One host and its ranks."""

    host: str
    ranks: list[Count]
    interface: str | None = None
    """Network interface that its traffic to other hosts takes."""
    address: str | None = None
    devices: Count | None = None
    """Devices that its first rank sees."""
    versions: dict[str, str] = {}


class AllReduce(Record):
    """Time of an all-reduce over all ranks by size of the message."""

    bytes: list[Count]
    seconds: list[Seconds]
    """Median of each size, on the slowest rank: latency first."""
    bytes_per_second: Rate
    """Of the largest message: its bytes / its time."""


class Preflight(Record):
    """The rendezvous of the ranks."""

    meeting: str
    """Address and port of rank 0."""
    backend: str
    seconds: Seconds
    """How long it all took."""
    hosts: list[Host]
    all_reduce: AllReduce | None = None


def describe_preflight(preflight: Preflight) -> str:
    """Return 4 ranks on 2 hosts connected at n1:20123 over eth0; all-reduce of 16 MiB in 12 ms."""
    ranks = format_count(sum(len(host.ranks) for host in preflight.hosts), "rank")
    interfaces = ", ".join(dict.fromkeys(host.interface for host in preflight.hosts if host.interface))
    over = f" over {interfaces}" if interfaces else ""
    line = f"{ranks} on {format_count(len(preflight.hosts), 'host')} connected at {preflight.meeting}{over}"
    timed = preflight.all_reduce
    if timed is None:
        return line
    return f"{line}; all-reduce of {format_bytes(timed.bytes[-1])} in {format_seconds(timed.seconds[-1])}"
