"""The pre-flight in a line of the terminal and on the page."""

from made_results import make_result
from trainstone.report.sections.facts import build_ranks
from trainstone.results.schema import AllReduce, Host, Preflight
from trainstone.results.summary import describe_preflight


def make_preflight(all_reduce: AllReduce | None) -> Preflight:
    hosts = [Host(host=name, ranks=ranks, interface="eth0") for name, ranks in (("n1", [0, 1]), ("n2", [2, 3]))]
    return Preflight(meeting="n1:20123", backend="gloo", seconds=1.0, hosts=hosts, all_reduce=all_reduce)


def test_describe_preflight_names_hosts_interface_and_largest_all_reduce():
    line = "4 ranks on 2 hosts connected at n1:20123 over eth0"
    assert describe_preflight(make_preflight(None)) == line
    timed = AllReduce(bytes=[1024, 2**24], seconds=[1e-4, 0.012], bytes_per_second=2**24 / 0.012)
    assert describe_preflight(make_preflight(timed)) == f"{line}; all-reduce of 16 MiB in 12 ms"


def test_page_shows_hosts_and_all_reduce_by_size():
    class View:
        result = make_result(
            "x", preflight=make_preflight(AllReduce(bytes=[1024, 2**24], seconds=[1e-4, 0.016], bytes_per_second=1e9))
        )

    section = build_ranks(View())
    assert section is not None
    hosts, timed = section.blocks
    assert [row[:2] for row in hosts.rows] == [["n1", "2"], ["n2", "2"]]
    assert len(timed.rows) == 2
    assert timed.rows[1][2] == "1000 MiB/s"
