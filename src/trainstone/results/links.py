"""Judges what ranks found out about each other: clocks that disagree, links that are slow; and tells it in a line."""

from trainstone.results.checks import finding
from trainstone.results.preflight import Host, Link, Preflight
from trainstone.results.schema import Finding
from trainstone.units import format_bytes, format_count, format_seconds

MOST_SKEW_SECONDS = 1.0
SLOW_SHARE = 0.5
MOST_TOLD = 5


def find_skewed(hosts: list[Host]) -> list[Finding]:
    """A finding where a clock goes wrong by more than a second, beyond what is uncertain about it."""
    told = []
    for host in hosts:
        skew, unsure = host.clock_skew_seconds, host.clock_uncertainty_seconds or 0.0
        if skew is not None and abs(skew) - unsure > MOST_SKEW_SECONDS:
            told.append(f"{host.host} {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}")
    if not told:
        return []
    return [finding("clock-skew", f"clocks differ from that of {hosts[0].host}: {shorten(told)}")]


def find_slow(links: list[Link]) -> list[Finding]:
    """A finding where a link has less than half the speed of the best; a host that all of them share is named."""
    pairs = [link for link in links if link.hosts]
    best = max((link.bytes_per_second for link in pairs), default=0.0)
    slow = [link for link in pairs if link.bytes_per_second < SLOW_SHARE * best]
    if not slow:
        return []
    told = [f"{'-'.join(link.hosts)} {format_bytes(link.bytes_per_second)}/s" for link in slow]
    shared = set(slow[0].hosts).intersection(*(link.hosts for link in slow[1:]))
    where = f"every slow link is one of {shared.pop()}: " if len(slow) > 1 and len(shared) == 1 else ""
    return [finding("slow-link", f"{where}{shorten(told)}; the best has {format_bytes(best)}/s")]


def shorten(told: list[str]) -> str:
    """Return the first few of many."""
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return ", ".join(told[:MOST_TOLD]) + more


def tell_met(preflight: Preflight) -> str:
    """Return 4 ranks on 2 hosts met at n1:20123 over eth0; 16 MiB all-reduce n1-n2 12 ms."""
    ranks = sum(len(host.ranks) for host in preflight.hosts)
    interfaces = ", ".join(dict.fromkeys(host.interface for host in preflight.hosts if host.interface))
    over = f" over {interfaces}" if interfaces else ""
    who = f"{format_count(ranks, 'rank')} on {format_count(len(preflight.hosts), 'host')}"
    line = f"{who} met at {preflight.meeting}{over}"
    pairs = [link for link in preflight.links if link.hosts]
    shown = min(pairs, key=lambda link: link.bytes_per_second) if pairs else next(iter(preflight.links), None)
    if shown is None:
        return line
    between = "-".join(shown.hosts) or "of all"
    slowest = "slowest " if len(pairs) > 1 else ""
    size, seconds = format_bytes(shown.bytes[-1]), format_seconds(shown.seconds[-1])
    return f"{line}; {size} all-reduce {slowest}{between} {seconds}"
