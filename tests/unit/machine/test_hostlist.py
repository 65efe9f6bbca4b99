import pytest

from trainstone.machine.hostlist import expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],gpu5", ["n01", "n02", "n03", "n7", "gpu5"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, hosts: list[str]):
    assert expand_hosts(text) == hosts
