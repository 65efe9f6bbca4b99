"""Flags turned into wishes, and what the verbs of `trainstone data` do around their work."""

from pathlib import Path

import pytest
import typer

from small_sets import make_set
from trainstone.cli.data import parse_shards, parse_size, refuse_inside, tell_made
from trainstone.cli.output import interruptible
from trainstone.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "shards"),
    [
        (None, {}),
        ("16", {"train": 16}),
        ("1024,128", {"train": 1024, "val": 128}),
        (" 2 , 1 ", {"train": 2, "val": 1}),
        ("99999", {"train": 99999}),
    ],
)
def test_numbers_of_files(text: str | None, shards: dict[str, int]):
    assert parse_shards(text, "wds") == shards


@pytest.mark.parametrize("text", ["", "0", "-1", "1,2,3", "x", "1.5", "100000", ",", "1,", "²"])
def test_numbers_of_files_that_cannot_be(text: str):
    with pytest.raises(ConfigError, match="a number, or two for training and validation") as caught:
        parse_shards(text, "wds")
    assert caught.value.hint == "--shards 1024,128"


@pytest.mark.parametrize(("text", "size"), [("96", (96, 96)), ("300x200", (300, 200)), ("16X4096", (16, 4096))])
def test_sizes(text: str, size: tuple[int, int]):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "15", "4097", "1x2x3", "300x", "x", "-300", "3e2"])
def test_sizes_that_cannot_be(text: str):
    with pytest.raises(ConfigError, match="pixels from 16 to 4096"):
        parse_size(text)


@pytest.mark.parametrize("target", ["source", "source/below", "source/a/b", "link/x"])
def test_a_target_inside_the_source_is_refused(tmp_path: Path, target: str):
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(ConfigError, match="lies inside"):
        refuse_inside(tmp_path / "source", tmp_path / target)


def test_ctrl_c_ends_without_a_traceback(capsys):
    with pytest.raises(typer.Exit) as left, interruptible():
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert "give the same command again to resume" in capsys.readouterr().err


def test_only_the_first_rank_tells(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    make_set(tmp_path / "set", "wds")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    tell_made(tmp_path / "set", as_json=False, worked=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    tell_made(tmp_path, as_json=False, worked=True)
    assert capsys.readouterr().out.startswith("rank 0 of 3 has done its part")
    tell_made(tmp_path / "set", as_json=False, worked=True)
    assert "8 train" in capsys.readouterr().out
