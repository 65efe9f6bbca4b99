"""What many ranks found out about each other before the work: hosts, and the links between them."""

from trainstone.results.record import Count, Rate, Record, Seconds


class Host(Record):
    """One host and its ranks."""

    host: str
    ranks: list[Count]
    interface: str | None = None
    """Network interface that its traffic to other hosts takes."""
    address: str | None = None
    clock_skew_seconds: float | None = None
    """How far its clock goes ahead of the first host's."""
    clock_uncertainty_seconds: Seconds | None = None
    """Half of the fastest round trip: the skew is known no better."""
    devices: Count | None = None
    """Devices that its first rank sees."""
    versions: dict[str, str] = {}


class Link(Record):
    """An all-reduce between the first ranks of two hosts, or of all ranks."""

    hosts: list[str]
    """Two; empty: all ranks together."""
    bytes: list[Count]
    """Sizes of the messages."""
    seconds: list[Seconds]
    """Median time of each size."""
    bytes_per_second: Rate
    """Of the largest message: its bytes / its time."""


class Preflight(Record):
    """The meeting of the ranks."""

    meeting: str
    """Address and port of the first rank."""
    backend: str
    seconds: Seconds
    """How long it all took."""
    hosts: list[Host]
    links: list[Link] = []
    links_left_out: Count = 0
    """Pairs of hosts that were not timed: there are too many."""
