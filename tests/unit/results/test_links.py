"""Clocks and links judged, with made-up numbers."""

from made_results import make_result
from trainstone.report.sections.ranks import build
from trainstone.results.links import find_skewed, find_slow, tell_met
from trainstone.results.preflight import Host, Link, Preflight


def make_link(*hosts: str, mebibytes: int = 100) -> Link:
    speed = mebibytes * 2.0**20
    return Link(hosts=list(hosts), bytes=[1024, 2**24], seconds=[1e-4, 2**24 / speed], bytes_per_second=speed)


def make_host(name: str, ranks: list[int], skew: float | None = None, unsure: float | None = None) -> Host:
    return Host(host=name, ranks=ranks, interface="eth0", clock_skew_seconds=skew, clock_uncertainty_seconds=unsure)


def test_a_clock_is_wrong_only_beyond_what_is_uncertain():
    assert find_skewed([make_host("n1", [0]), make_host("n2", [1], 1.2, 0.4)]) == []
    (found,) = find_skewed([make_host("n1", [0]), make_host("n2", [1], -2.0, 0.1)])
    assert (found.code, found.message) == ("clock-skew", "clocks differ from that of n1: n2 2.0 s behind")


def test_slow_links_are_told_and_the_host_they_share():
    good = [make_link("n1", "n2"), make_link("n1", "n3", mebibytes=60), make_link(mebibytes=10)]
    assert find_slow(good) == []
    assert find_slow([]) == []
    (one,) = find_slow([*good, make_link("n2", "n3", mebibytes=20)])
    assert one.message.startswith("n2-n3 ")
    (shared,) = find_slow([make_link("n1", "n2"), *(make_link(n, "n3", mebibytes=9) for n in ("n1", "n2"))])
    assert shared.message.startswith("every slow link is one of n3: n1-n3 ")


def test_the_meeting_is_told_in_a_line_and_on_the_page():
    hosts = [make_host("n1", [0, 1]), make_host("n2", [2, 3], 0.001, 0.0001)]
    links = [make_link("n1", "n2"), make_link()]
    preflight = Preflight(meeting="n1:20123", backend="gloo", seconds=1.0, hosts=hosts, links=links)
    line = tell_met(preflight)
    assert line.startswith("4 ranks on 2 hosts met at n1:20123 over eth0; 16")
    assert " all-reduce n1-n2 " in line

    class View:
        result = make_result("x", preflight=preflight)

    section = build(View())
    assert section is not None
    assert section.title == "Ranks and links"
    assert [row[0] for row in section.blocks[1].rows] == ["all ranks", "n1 - n2"]
