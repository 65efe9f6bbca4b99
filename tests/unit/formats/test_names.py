import pytest

from trainstone.formats.names import find_escape, is_inside


@pytest.mark.parametrize("name", ["a", "a/b c.jpg", "..jpg", "a/..b", "./a", "a//b", "a/", "...", "\udcff", "a\nb"])
def test_names_below_the_folder_are_inside(name: str):
    assert is_inside(name)


@pytest.mark.parametrize("name", ["", ".", "./", "./.", "/", "/etc/passwd", "..", "../a", "a/..", "a/../../b", "a\0b"])
def test_names_that_lead_elsewhere_are_not(name: str):
    assert not is_inside(name)


def test_the_reason_is_told_and_the_folder_itself_is_no_escape():
    assert find_escape("/a") == "has an absolute name"
    assert (find_escape("a/..") or "").startswith("has '..' in its name")
    assert find_escape("a\0") == "has a zero byte in its name"
    assert find_escape("./") is None
